//! The crew against ranks that are shell scripts: what it does must not depend on what a rank is.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

use super::super::plan;
use super::*;

struct Script {
    /// Holds the script.
    _dir: tempfile::TempDir,
    path: PathBuf,
}

/// A rank that joins and then does `body` after each barrier; `$rank` is its number, `$step` counts from 0.
fn script(body: &str) -> Script {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("rank");
    let step = r#"report() { echo "{\"Step\":{\"rank\":$rank,\"step\":$step,\"wait\":{\"secs\":0,\"nanos\":5},\"samples\":[],\"skipped\":0,\"late\":{\"secs\":0,\"nanos\":0}}}"; }"#;
    let left = r#"leave() { echo '{"Left":{"copied":1,"uploaded":2}}'; exit 0; }"#;
    let text = format!(
        "#!/bin/sh\nread spec\nrank=${{spec#*rank\\\":}}\nrank=${{rank%%,*}}\nstep=0\n{step}\n{left}\n\
         echo '{{\"Joined\":{{\"daemon\":0}}}}'\nwhile read go; do\n{body}\nstep=$((step + 1))\ndone\n"
    );
    fs::write(&path, text).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    Script { _dir: dir, path }
}

fn run(body: &str, ranks: u32, steps: u32) -> Result<Outcome, CrewError> {
    let script = script(body);
    let plan = plan::testing::plan(&[]);
    let spec = |rank| plan.spec(super::super::args::Contender::Helix, rank, "test", "none".as_ref());
    Crew::start(&script.path, (0..ranks).map(spec).collect(), None, &Arc::new(Screen::new()))?
        .run(steps, &mut |_, _| {})
}

#[test]
fn all_steps_of_all_ranks_arrive_in_order() {
    let outcome = run("[ $step -eq 3 ] && leave; report", 3, 3).unwrap();
    let seen: Vec<Vec<(u32, u32)>> =
        outcome.steps.iter().map(|s| s.ranks.iter().map(|r| (r.rank, r.step)).collect()).collect();
    let expected: Vec<Vec<(u32, u32)>> = (0..3).map(|step| (0..3).map(|rank| (rank, step)).collect()).collect();
    assert_eq!(seen, expected);
    assert_eq!((outcome.copied, outcome.uploaded), (3, 6));
}

#[test]
fn a_rank_that_is_killed_ends_the_run_and_is_named() {
    let died = run("[ $rank -eq 1 ] && [ $step -eq 1 ] && kill -9 $$; report", 3, 5).unwrap_err();
    assert!(matches!(&died, CrewError::Died { rank: 1, .. }), "{died}");
    assert!(died.to_string().contains("signal 9"), "{died}");
}

#[test]
fn a_rank_that_fails_gives_its_reason() {
    let failed = run(r#"[ $rank -eq 2 ] && echo '{"Failed":"no memory"}' && exit 1; report"#, 3, 5).unwrap_err();
    assert!(matches!(&failed, CrewError::Failed { rank: 2, reason } if reason == "no memory"), "{failed}");
}

#[test]
fn a_bad_sample_is_kept_once() {
    let bad =
        r#"echo '{"Bad":{"sample":7,"path":"p","stage":"decode","reason":"r"}}'; [ $step -eq 1 ] && leave; report"#;
    let outcome = run(bad, 2, 1).unwrap();
    assert_eq!(outcome.bad.len(), 1);
    assert_eq!(outcome.bad[0].sample, 7);
}

#[test]
fn nonsense_is_an_error_that_shows_it() {
    let nonsense = run("echo nonsense", 1, 1).unwrap_err();
    assert!(matches!(nonsense, CrewError::Protocol { rank: 0, .. }), "{nonsense}");
}

#[test]
fn a_program_that_is_not_there_is_an_error() {
    let plan = plan::testing::plan(&[]);
    let spec = plan.spec(super::super::args::Contender::Pool, 0, "test", "none".as_ref());
    let missing = Crew::start("/nonexistent/rank".as_ref(), vec![spec], None, &Arc::new(Screen::new()));
    assert!(matches!(missing, Err(CrewError::Start { rank: 0, .. })));
}
