use std::collections::BTreeSet;

use super::*;

const SAMPLE: &str = include_str!("../../deploy/helix-shmd.toml");

fn error(text: &str) -> String {
    Config::parse(text, Path::new("h.toml")).unwrap_err().to_string()
}

#[test]
fn the_file_that_is_shipped_says_every_key_with_its_default_and_what_it_does() {
    assert_eq!(Config::parse(SAMPLE, Path::new("h.toml")).unwrap(), Config::default(), "all is commented out");
    // A setting has no space behind its mark, as prose has.
    let set =
        |line: &str| line.strip_prefix('#').filter(|l| !l.starts_with([' ', '#']) && l.contains(" = ")).is_some();
    let active: String = SAMPLE.lines().map(|l| if set(l) { &l[1..] } else { l }).flat_map(|l| [l, "\n"]).collect();
    assert_eq!(Config::parse(&active, Path::new("h.toml")).unwrap(), Config::default());
    let table: toml::Table = active.parse().unwrap();
    let said: BTreeSet<String> = table
        .iter()
        .flat_map(|(t, keys)| keys.as_table().unwrap().keys().map(move |key| format!("{t}.{key}")))
        .collect();
    assert_eq!(said, Config::keys().into_iter().collect());
    let lines: Vec<&str> = SAMPLE.lines().collect();
    for (n, line) in lines.iter().enumerate().filter(|(_, line)| set(line)) {
        assert!(lines[n - 1].starts_with("# "), "`{line}` has no explanation above it");
    }
}

#[test]
fn a_key_that_is_not_known_is_an_error_with_its_line_and_the_one_that_was_meant() {
    let told = error("[log]\nlevel = \"warn\"\n\n[workers]\nmosst = 3\n");
    assert!(told.contains("h.toml, line 5: there is no key `mosst`; did you mean `"), "{told}");
    let told = error("[jobs]\nlinger = 5\n");
    assert!(told.contains("line 2") && told.contains("did you mean `jobs.linger_ms`?"), "{told}");
    let told = error("[worker]\nmost = 3\n");
    assert!(told.contains("did you mean `workers`?"), "{told}");
    let told = error("[log]\nevery_ms = 50\n");
    assert!(told.contains("did you mean `status.every_ms`?"), "{told}");
    let told = error("colour = true\n");
    assert!(told.contains("line 1: there is no key `colour`; deploy/helix-shmd.toml"), "{told}");
}

#[test]
fn a_value_out_of_its_range_is_told_with_the_range() {
    let cases = [
        ("[workers]\nmost = 0\n", "line 2: `workers.most` is 0; wanted from 1 to 256 workers"),
        ("[workers]\nmost = 4\ndefault = 5\n", "line 3: `workers.default` is 5; wanted from 0 to 4 workers"),
        ("status.every_ms = 5\n", "line 1: `status.every_ms` is 5; wanted from 10"),
        ("\n[daemon]\nsocket = \"run.sock\"\n", "line 3: `daemon.socket` is run.sock; wanted an absolute path"),
        ("[log]\nlevel = \"loud\"\n", "line 2: `log.level` is `loud`; wanted off, error"),
        ("[log]\nlevel = \"info,[\"\n", "line 2: `log.level` is"),
        ("[jobs]\nrejoin_s = 4000\n", "wanted from 1 to 3600 seconds"),
        ("[memory]\njob_mib = 999999999999\n", "`memory.job_mib` is 999999999999"),
    ];
    for (text, wanted) in cases {
        let told = error(text);
        assert!(told.contains(wanted), "{told}");
    }
}

#[test]
fn what_is_no_toml_or_of_another_kind_is_told_with_its_line() {
    for (text, wanted) in [
        ("[log\n", "line 1"),
        ("[jobs]\nmost = \"many\"\n", "line 2: invalid type"),
        ("[log]\nformat = \"xml\"\n", "line 2: unknown variant"),
        ("[jobs]\nmost = -1\n", "line 2"),
        ("[jobs]\nmost = 1\nmost = 2\n", "line 3"),
    ] {
        let told = error(text);
        assert!(told.contains(wanted), "{told}");
    }
    assert!(Config::read(Path::new("/nowhere/h.toml")).unwrap_err().to_string().contains("/nowhere/h.toml"));
}

#[test]
fn what_cannot_be_changed_while_it_runs_is_known() {
    let old = Config::default();
    let mut new = old.clone();
    (new.log.level, new.jobs.most, new.workers.most) = ("debug".into(), 3, 5);
    assert!(new.needs_restart(&old).is_empty());
    (new.daemon.socket, new.log.format) = ("/run/x.sock".into(), LogFormat::Json);
    assert_eq!(new.needs_restart(&old), ["daemon.socket", "log.format"]);
}

proptest::proptest! {
    #![proptest_config(proptest::prelude::ProptestConfig { failure_persistence: None, ..Default::default() })]
    #[test]
    fn a_scribbled_file_is_a_configuration_or_an_error_that_can_be_told(
        changes in proptest::collection::vec((0usize..SAMPLE.len(), proptest::prelude::any::<u8>()), 0..40)
    ) {
        let mut bytes = SAMPLE.replace("\n#", "\n").replace("\n ", "\n# ").into_bytes();
        for (at, byte) in changes {
            let at = at % bytes.len();
            bytes[at] = byte;
        }
        fuzz(&bytes);
    }
}
