//! Order, balance, deadlines, placement: events in, decisions out. Pure.

pub mod event;
