//! `helix results`: what benchmarks, campaigns and the demo found, those rows first that do not hold.

use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use helix_shm::results::{Row, read};

/// Exit code: 0 all rows hold, 1 some do not, 2 there is none.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Folder with the files
    #[arg(default_value = "target/results", value_name = "DIR")]
    dir: PathBuf,
    /// Only rows whose name contains this
    #[arg(long, value_name = "TEXT", default_value = "")]
    only: String,
}

pub(crate) fn run(args: &Args) -> ExitCode {
    let mut rows = match read(&args.dir) {
        Ok(rows) => rows,
        Err(error) => {
            eprintln!("helix results: {}: {error}; `make demo` and `make bench` make rows", args.dir.display());
            return ExitCode::from(2);
        }
    };
    rows.retain(|row| row.name.contains(&args.only));
    if rows.is_empty() {
        eprintln!("helix results: no row in {}; `make demo` and `make bench` make some", args.dir.display());
        return ExitCode::from(2);
    }
    rows.sort_by(|a, b| (a.holds, &a.name).cmp(&(b.holds, &b.name)));
    // Whoever reads our output may have seen enough.
    let _ = print(&rows, &mut io::stdout().lock());
    if rows.iter().all(|row| row.holds) { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn print(rows: &[Row], out: &mut impl Write) -> io::Result<()> {
    let wide = |f: fn(&Row) -> usize| rows.iter().map(f).max().unwrap_or(0);
    let (names, targets) = (wide(|r| r.name.len()), wide(|r| r.target.len()).max("target".len()));
    writeln!(out, "{:5} {:names$} {:>12} {:10} {:targets$}  made by", "", "name", "value", "unit", "target")?;
    for row in rows {
        let mark = if row.holds { "" } else { "FAILS" };
        let Row { name, value, unit, target, command, .. } = row;
        writeln!(out, "{mark:5} {name:names$} {:>12} {unit:10} {target:targets$}  {command}", number(*value))?;
    }
    let failing = rows.iter().filter(|r| !r.holds).count();
    writeln!(out, "{} rows, {failing} do not hold", rows.len())
}

/// Whole numbers whole, others with four significant digits.
fn number(value: f64) -> String {
    if value.fract() == 0.0 && value.abs() < 1e15 {
        return format!("{value}");
    }
    let digits = (3.0 - value.abs().log10().floor()).clamp(0.0, 9.0) as usize;
    format!("{value:.digits$}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_four_digits_that_matter() {
        let shown = [0.0, 12.0, 1.23456, 1234.56, 0.001234567, f64::NAN].map(number);
        assert_eq!(shown, ["0", "12", "1.235", "1235", "0.001235", "NaN"]);
    }

    #[test]
    fn a_row_that_fails_is_marked() {
        let rows = [Row::new("a", 2.0, "ms", "<= 1", "make x"), Row::new("b", 1.0, "", "", "make y")];
        let mut out = Vec::new();
        print(&rows, &mut out).unwrap();
        let out = String::from_utf8(out).unwrap();
        assert!(out.lines().nth(1).unwrap().starts_with("FAILS a"), "{out}");
        assert!(out.ends_with("2 rows, 1 do not hold\n"), "{out}");
    }
}
