//! The configuration file of `helix-shmd`: what it may say, what that must be, and how an error is told.
//!
//! TOML, every key of it in `deploy/helix-shmd.toml` with its default and what it does; a test compares that file with
//! the code. A key that is not known is an error, since a setting that is silently ignored is worse than none.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::proto::session::MAX_WORKERS;

/// Everything that the file may say. Absent keys have their defaults.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// The daemon as a whole.
    pub daemon: DaemonKeys,
    /// What is said, and how.
    pub log: LogKeys,
    /// Jobs.
    pub jobs: JobKeys,
    /// Budgets.
    pub memory: MemoryKeys,
    /// Worker processes.
    pub workers: WorkerKeys,
    /// The scheduler.
    pub scheduler: SchedulerKeys,
    /// The status page.
    pub status: StatusKeys,
}

/// `[daemon]`
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct DaemonKeys {
    /// Where to listen.
    pub socket: PathBuf,
    /// How long jobs may go on after SIGTERM, seconds.
    pub drain_s: u32,
}

/// `[log]`
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct LogKeys {
    /// What is said: a level, or a filter.
    pub level: String,
    /// How.
    pub format: LogFormat,
}

/// How a line of the log looks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LogFormat {
    /// For people.
    Text,
    /// An object a line.
    Json,
}

/// `[jobs]`
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct JobKeys {
    /// Most at once.
    pub most: u32,
    /// How long workers of a job without ranks are kept, milliseconds.
    pub linger_ms: u32,
    /// How long ranks that come back after a daemon's death wait for the others, seconds.
    pub rejoin_s: u32,
}

/// `[memory]`
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct MemoryKeys {
    /// Slabs of a job together, MiB; 0 = no limit.
    pub job_mib: u64,
    /// Slabs of all jobs together, MiB; 0 = no limit.
    pub all_mib: u64,
}

/// `[workers]`
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct WorkerKeys {
    /// Of a job that names no number; 0 = one for each core that the daemon may use.
    pub default: u32,
    /// Most of a job, whatever it asks for.
    pub most: u32,
    /// Whether they may be pinned to cores.
    pub pin: bool,
}

/// `[scheduler]`
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct SchedulerKeys {
    /// How long before a worker is free it is given its next sample, milliseconds.
    pub horizon_ms: u32,
}

/// `[status]`
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct StatusKeys {
    /// Whether there is a status page.
    pub page: bool,
    /// How often it is written while there is a job, milliseconds.
    pub every_ms: u32,
}

impl Default for DaemonKeys {
    fn default() -> Self {
        DaemonKeys { socket: "/run/helix-shm/helix-shmd.sock".into(), drain_s: 0 }
    }
}

impl Default for LogKeys {
    fn default() -> Self {
        LogKeys { level: "info".into(), format: LogFormat::Text }
    }
}

impl Default for JobKeys {
    fn default() -> Self {
        // A loader that is made anew finds its workers warm.
        JobKeys { most: 64, linger_ms: 200, rejoin_s: 30 }
    }
}

impl Default for WorkerKeys {
    fn default() -> Self {
        WorkerKeys { default: 0, most: MAX_WORKERS.into(), pin: true }
    }
}

impl Default for SchedulerKeys {
    fn default() -> Self {
        SchedulerKeys { horizon_ms: 50 }
    }
}

impl Default for StatusKeys {
    fn default() -> Self {
        StatusKeys { page: true, every_ms: 100 }
    }
}

/// What is wrong with a configuration.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("cannot read {}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// It is no TOML, or a value is of another kind than wanted.
    #[error("{}, line {line}: {found}", path.display())]
    Syntax {
        /// The file.
        path: PathBuf,
        /// The line.
        line: usize,
        /// What was found.
        found: String,
    },
    /// There is no such key.
    #[error("{}, line {line}: there is no key `{key}`; {}", path.display(), suggestion(nearest))]
    Unknown {
        /// The file.
        path: PathBuf,
        /// The line.
        line: usize,
        /// The key.
        key: String,
        /// The key that may have been meant.
        nearest: Option<String>,
    },
    /// A value that cannot be served.
    #[error("{}, line {line}: `{key}` is {found}; wanted {wanted}", path.display())]
    Range {
        /// The file.
        path: PathBuf,
        /// The line.
        line: usize,
        /// The key.
        key: &'static str,
        /// What was found.
        found: String,
        /// What would do.
        wanted: String,
    },
}

fn suggestion(nearest: &Option<String>) -> String {
    match nearest {
        Some(key) => format!("did you mean `{key}`?"),
        None => "deploy/helix-shmd.toml has all there are".into(),
    }
}

impl Config {
    /// Reads a file.
    pub fn read(path: &Path) -> Result<Config, ConfigError> {
        let text = std::fs::read_to_string(path);
        Config::parse(&text.map_err(|source| ConfigError::Read { path: path.into(), source })?, path)
    }

    /// Reads a text; `path` is for messages.
    pub fn parse(text: &str, path: &Path) -> Result<Config, ConfigError> {
        let config: Config = toml::from_str(text).map_err(|e| explain(&e, text, path))?;
        config.check().map_err(|(key, found, wanted)| ConfigError::Range {
            path: path.into(),
            line: line_of(text, key),
            key,
            found,
            wanted,
        })?;
        Ok(config)
    }

    /// The first value that cannot be served: its key, what it is, and what would do.
    fn check(&self) -> Result<(), (&'static str, String, String)> {
        let range = |key, found: u64, least: u64, most: u64, unit: &str| {
            if (least..=most).contains(&found) {
                return Ok(());
            }
            Err((key, found.to_string(), format!("from {least} to {most}{unit}")))
        };
        let socket = &self.daemon.socket;
        // What fits into a socket's address.
        if !socket.is_absolute() || socket.as_os_str().len() > 107 {
            return Err((
                "daemon.socket",
                socket.display().to_string(),
                "an absolute path of at most 107 bytes".into(),
            ));
        }
        if let Err(wanted) = check_level(&self.log.level) {
            return Err(("log.level", format!("`{}`", self.log.level), wanted));
        }
        let (jobs, workers) = (&self.jobs, &self.workers);
        range("daemon.drain_s", self.daemon.drain_s.into(), 0, 86_400, " seconds")?;
        range("jobs.most", jobs.most.into(), 1, 1024, " jobs")?;
        range("jobs.linger_ms", jobs.linger_ms.into(), 0, 3_600_000, " milliseconds")?;
        range("jobs.rejoin_s", jobs.rejoin_s.into(), 1, 3600, " seconds")?;
        range("workers.most", workers.most.into(), 1, MAX_WORKERS.into(), " workers")?;
        range("workers.default", workers.default.into(), 0, workers.most.into(), " workers, which is workers.most")?;
        range("scheduler.horizon_ms", self.scheduler.horizon_ms.into(), 2, 10_000, " milliseconds")?;
        range("status.every_ms", self.status.every_ms.into(), 10, 10_000, " milliseconds")?;
        // 2^48 bytes are the most that an address can name.
        range("memory.job_mib", self.memory.job_mib, 0, 1 << 28, " MiB")?;
        range("memory.all_mib", self.memory.all_mib, 0, 1 << 28, " MiB")
    }

    /// Keys whose values differ and take effect only in a daemon that is started anew.
    pub fn needs_restart(&self, other: &Config) -> Vec<&'static str> {
        let mut keys = Vec::new();
        if self.daemon.socket != other.daemon.socket {
            keys.push("daemon.socket");
        }
        if self.log.format != other.log.format {
            keys.push("log.format");
        }
        if self.status.page != other.status.page {
            keys.push("status.page");
        }
        keys
    }

    /// Every key, with its table.
    pub fn keys() -> Vec<String> {
        let Ok(tables) = toml::Table::try_from(Config::default()) else { return Vec::new() };
        let keys = |(table, value): (&String, &toml::Value)| {
            let names = value.as_table().into_iter().flat_map(|t| t.keys());
            names.map(|key| format!("{table}.{key}")).collect::<Vec<_>>()
        };
        tables.iter().flat_map(keys).collect()
    }
}

/// Refuses a filter that tracing would not take, saying what would do.
fn check_level(level: &str) -> Result<(), String> {
    let wanted = "off, error, warn, info, debug or trace, or a filter such as `info,helix_shm::daemon=debug`";
    // An unknown word alone is read as the name of a module, which is never what was meant.
    let plain = !level.contains(['=', ',']);
    let known = ["off", "error", "warn", "info", "debug", "trace"].contains(&level);
    if level.is_empty() || (plain && !known) {
        return Err(wanted.into());
    }
    match tracing_subscriber::EnvFilter::try_new(level) {
        Ok(_) => Ok(()),
        Err(e) => Err(format!("{wanted} ({e})")),
    }
}

/// A parser's error in words of ours.
fn explain(e: &toml::de::Error, text: &str, path: &Path) -> ConfigError {
    let span = e.span().unwrap_or(0..0);
    let line = 1 + text.as_bytes()[..span.start.min(text.len())].iter().filter(|b| **b == b'\n').count();
    let path = path.to_path_buf();
    if !e.message().starts_with("unknown field") {
        return ConfigError::Syntax { path, line, found: e.message().trim_end().to_string() };
    }
    let key = text.get(span).unwrap_or_default().trim_matches(['"', '\'', '[', ']', ' ']).to_string();
    let nearest = nearest(&key);
    ConfigError::Unknown { path, line, key, nearest }
}

/// The key that is closest to a wrong one, if any is close.
fn nearest(key: &str) -> Option<String> {
    let mut names = Config::keys();
    let tables: std::collections::BTreeSet<String> =
        names.iter().filter_map(|name| Some(name.split_once('.')?.0.to_string())).collect();
    names.extend(tables);
    let distance = |name: &String| {
        let (key, last) = (key.to_lowercase(), name.rsplit('.').next().unwrap_or(name));
        // Without its unit, say.
        let begins = key.len() > 2 && last.starts_with(&key);
        if begins { 1 } else { strsim::damerau_levenshtein(&key, last) }
    };
    let best = names.into_iter().min_by_key(distance)?;
    (distance(&best) <= 1 + key.len() / 4).then_some(best)
}

/// The line that sets a key; 1 if it is set in a way that this does not see.
fn line_of(text: &str, key: &str) -> usize {
    let (table, name) = key.split_once('.').unwrap_or(("", key));
    let mut at = String::new();
    for (n, line) in text.lines().enumerate() {
        let line = line.trim();
        if let Some(header) = line.strip_prefix('[').and_then(|rest| rest.split(']').next()) {
            at = header.trim().to_string();
        }
        let set = line.split('=').next().unwrap_or_default().trim();
        if (at == table && set == name) || (at.is_empty() && set == key) {
            return n + 1;
        }
    }
    1
}

/// For fuzzing: any bytes are a configuration or an error that can be told.
#[doc(hidden)]
#[cfg(any(test, fuzzing))]
pub fn fuzz(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    match Config::parse(text, Path::new("fuzz.toml")) {
        Ok(config) => {
            assert!(config.check().is_ok());
            let again = toml::to_string(&config).expect("what was read can be written");
            assert_eq!(Config::parse(&again, Path::new("again.toml")).expect("and read again"), config);
        }
        Err(e) => drop(e.to_string()),
    }
}

#[cfg(test)]
#[path = "config_tests.rs"]
mod tests;
