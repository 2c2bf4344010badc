//! Landlock: of all files only those below the data roots, and those for reading alone.

use landlock::{
    ABI, Access, AccessFs, AccessNet, PathBeneath, PathFd, Ruleset, RulesetAttr, RulesetCreatedAttr, RulesetStatus,
    Scope,
};

use super::Roots;

/// The newest kernel interface that is asked for; an older kernel gives what it has. Files since 5.13, TCP since
/// 6.7, signals and abstract Unix sockets since 6.12.
const WANTED: ABI = ABI::V6;

pub(super) fn restrict(roots: &Roots) -> Result<(), String> {
    let status = ask(roots).map_err(|e| e.to_string())?;
    match status {
        // In part is enough: what older kernels lack of it, the filter has.
        RulesetStatus::FullyEnforced | RulesetStatus::PartiallyEnforced => Ok(()),
        RulesetStatus::NotEnforced => {
            Err("this kernel has no Landlock (Linux 5.13, with `landlock` in the boot option lsm=)".into())
        }
    }
}

fn ask(roots: &Roots) -> Result<RulesetStatus, landlock::RulesetError> {
    let mut rules = Ruleset::default()
        .handle_access(AccessFs::from_all(WANTED))?
        .handle_access(AccessNet::from_all(WANTED))?
        .scope(Scope::from_all(WANTED))?
        .create()?;
    for root in roots.iter() {
        // One that is not there can hold nothing that is read; its samples fail when they are opened.
        let Ok(at) = PathFd::new(root) else { continue };
        let reading = if root.is_dir() { AccessFs::ReadFile | AccessFs::ReadDir } else { AccessFs::ReadFile.into() };
        rules = rules.add_rule(PathBeneath::new(at, reading))?;
    }
    Ok(rules.restrict_self()?.ruleset)
}
