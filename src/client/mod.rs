//! The rank's side: connect, prefetch, order, batch, state.
