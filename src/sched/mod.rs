//! Order, balance, deadlines, placement: events in, decisions out.
//!
//! Who receives a sample is a pure function of manifest, options and epoch ([`order`], [`mix`], [`units`], [`regroup`],
//! [`plan`], [`balance`], [`pack`], with the frozen priors of [`cost`] and [`tokens`]). Who decodes it, and when, is the
//! [`Engine`]'s choice, by what it measures ([`online`]). What is decoded may change hands once more ([`second`]). This room knows `proto`'s options and transforms. It does no I/O, has no clock, no
//! threads and no randomness of its own: the same events give the same decisions.

pub mod balance;
mod catalog;
pub mod cost;
mod engine;
pub mod event;
pub mod mix;
pub mod online;
pub mod order;
pub mod pack;
pub mod plan;
pub mod record;
pub mod regroup;
pub mod scaling;
pub mod second;
pub mod tokens;
pub mod units;

pub use engine::{Engine, EngineOptions, Queue, Window};
