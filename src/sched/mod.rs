//! Order, balance, deadlines, placement: events in, decisions out. Pure.

mod catalog;
pub mod event;
