//! The crash campaign: any process may die at any moment, and nothing is lost, repeated or left behind.
//!
//! A round starts a daemon and ranks on tiny clips, has some of their processes die ([`points`] and random instants),
//! lets the ranks that were killed come back, and compares everything that was delivered with an undisturbed run
//! ([`round`], [`leftovers`]). [`campaign`] plans rounds until every point has been hit often enough and the number
//! of kills asked for is reached, with as many rounds at a time as keep the cores busy.
//!
//! | variable | meaning |
//! |---|---|
//! | `CRASH_KILLS` | how many kills; 200 by default |
//! | `CRASH_SEED` | seed of the campaign; 1 by default |
//! | `CRASH_PLAN` | runs this one round only, as a failure printed it |

mod campaign;
#[path = "../common/mod.rs"]
mod common;
mod data;
mod leftovers;
mod points;
mod rank;
mod round;
mod tally;

fn main() -> std::process::ExitCode {
    if let Ok(spec) = std::env::var(rank::VARIABLE) {
        rank::run(&spec);
        return std::process::ExitCode::SUCCESS;
    }
    points::compare_with_sources();
    campaign::run()
}
