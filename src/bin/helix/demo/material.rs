//! The clips: the user's or a corpus made on the spot, indexed, chosen, and written as the manifest of the run.

use std::path::{Path, PathBuf};

use helix_shm::corpus::{self, CorpusOptions};
use helix_shm::manifest::build::{Build, BuildError};
use helix_shm::manifest::{AtomicFile, Manifest, Record, Writer};

use super::DemoError;
use super::args::DemoArgs;
use super::interrupt;
use super::screen::Screen;

/// Clips of the user that take part, if he does not say.
const MOST_VIDEOS: usize = 256;
/// Clips of the corpus.
const CORPUS_CLIPS: u32 = 80;

/// What there is to be fed.
pub(crate) struct Material {
    pub(crate) clips: Vec<Record>,
    /// In a few words, where it comes from and how much it is.
    pub(crate) words: String,
}

/// Finds or makes the clips, and indexes them.
pub(crate) fn gather(args: &DemoArgs, screen: &Screen) -> Result<Material, DemoError> {
    writable(&args.work)?;
    let (folder, what) = match &args.videos {
        Some(folder) => (folder.clone(), "videos"),
        None => (make_corpus(args, screen)?, "clips made for the demo"),
    };
    let index = args.work.join("videos.arrow");
    let manifest = index_folder(&folder, &index, screen)?;
    for &row in manifest.bad_rows() {
        let path = manifest.descriptor(row).path.to_owned();
        screen.line(&format!("left out: {path}: {}", manifest.error(row).unwrap_or("unreadable")));
    }
    let good = manifest.good();
    let most = args.clips.map_or(MOST_VIDEOS, |n| n as usize).min(good as usize);
    // Evenly over the folder's order, so that no kind of file is left out.
    let clips: Vec<Record> = (0..most as u64)
        .map(|i| Record::from(&manifest.descriptor(manifest.good_row(i * good / most as u64))))
        .collect();
    let needed = u64::from(args.ranks) * u64::from(args.batch_size);
    if (clips.len() as u64) < needed {
        return Err(DemoError::TooFew {
            folder,
            found: clips.len(),
            needed,
            ranks: args.ranks,
            batch: args.batch_size,
        });
    }
    let bytes: u64 = clips.iter().map(|c| c.len).sum();
    let mut words = format!("{} {what}, {} MB", clips.len(), bytes / 1_000_000);
    if (most as u64) < good {
        words += &format!(" (of {good}; --clips sets how many)");
    }
    if !manifest.bad_rows().is_empty() {
        words += &format!("; {} files could not be indexed", manifest.bad_rows().len());
    }
    Ok(Material { clips, words })
}

fn make_corpus(args: &DemoArgs, screen: &Screen) -> Result<PathBuf, DemoError> {
    let options = CorpusOptions { clips: args.clips.unwrap_or(CORPUS_CLIPS), seed: args.seed, threads: 0 };
    let dir = args.corpus.clone().unwrap_or_else(|| args.work.join(options.folder_name()));
    // Thousandths, since effort is known only when the making begins.
    screen.begin("make clips", 1000);
    let corpus = corpus::make(&dir, &options, &|p| {
        screen.at(p.done * 1000 / p.total.max(1), || {
            format!("{} of {} files, kept in {}", p.files, p.of, dir.display())
        });
        !interrupt::asked()
    });
    screen.end();
    match corpus {
        Ok(corpus) => {
            for encoder in &corpus.missing {
                screen.line(&format!("this FFmpeg has no {}; other codecs take its place", encoder.name()));
            }
            Ok(corpus.dir)
        }
        Err(corpus::CorpusError::Stopped) => Err(DemoError::Interrupted),
        Err(error) => Err(error.into()),
    }
}

/// Says at once, not after a minute of making clips, that the results would have no place.
fn writable(work: &Path) -> Result<(), DemoError> {
    let refused = |source| DemoError::Work { folder: work.to_owned(), source };
    std::fs::create_dir_all(work).map_err(refused)?;
    tempfile_in(work).map_err(refused)
}

fn tempfile_in(dir: &Path) -> std::io::Result<()> {
    let probe = dir.join(format!(".{}.probe", std::process::id()));
    std::fs::write(&probe, b"")?;
    std::fs::remove_file(probe)
}

/// Writes the manifest of the run: `rows` rows, the clips over and over.
pub(crate) fn write_manifest(path: &Path, clips: &[Record], rows: u64) -> Result<(), DemoError> {
    let file = AtomicFile::create(path)?;
    let mut writer = Writer::new(file, r#"{"made_by":"helix demo"}"#)?;
    for (row, clip) in (0..rows).zip(clips.iter().cycle()) {
        writer.push(&clip.descriptor(row))?;
    }
    let (_, file) = writer.finish_into()?;
    Ok(file.commit()?)
}
/// Indexes a folder; what an earlier run found out of unchanged files is kept.
fn index_folder(folder: &Path, index: &Path, screen: &Screen) -> Result<Manifest, DemoError> {
    let build = Build {
        paths: vec![folder.to_owned()],
        root: None,
        output: index.to_owned(),
        jobs: 0,
        reuse: true,
        sound: false,
    };
    let mut begun = false;
    let built = build.run(interrupt::flag(), |p| {
        if !std::mem::replace(&mut begun, true) {
            screen.begin("index", p.total);
        }
        screen.at(p.done, || format!("{} of {} files are bad", p.bad, p.done));
    });
    screen.end();
    match built {
        Ok(_) => Ok(Manifest::open(index)?),
        Err(BuildError::Stopped { .. }) => Err(DemoError::Interrupted),
        Err(BuildError::Nothing { others, .. }) => {
            Err(DemoError::NoVideos { folder: folder.to_owned(), files: others })
        }
        Err(error) => Err(error.into()),
    }
}
