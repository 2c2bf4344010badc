//! Sockets, supervision, the region table; drives the scheduler.
