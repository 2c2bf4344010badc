//! A trainer in ten lines. `RANK=0 WORLD_SIZE=1 cargo run --example train data.arrow`, or under any launcher that
//! sets these.

use helix_shm::{Loader, Options};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let manifest = std::env::args().nth(1).ok_or("usage: train MANIFEST (made by `helix index`)")?;
    let mut loader = Loader::connect(Options::from_env()?.manifest(manifest).batch_size(2))?;
    for batch in &mut loader {
        let batch = batch?;
        let video = batch.tensor("video")?; // where the worker wrote it: nothing was copied
        println!("step {}: samples {:?}, shape {:?}", batch.step(), batch.ids(), video.shape);
    }
    Ok(())
}
