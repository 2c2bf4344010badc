//! helix
#[allow(dead_code)]
mod demo;
use clap::Parser;
#[derive(Parser)]
enum Cli {
    Demo(demo::DemoArgs),
}
fn main() -> std::process::ExitCode {
    match Cli::parse() {
        Cli::Demo(a) => demo::main(&a),
    }
}
