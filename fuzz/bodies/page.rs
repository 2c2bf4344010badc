//! Any bytes on a status page: a page or none, and text that cannot steer a terminal.

use helix_shm::proto::page::Page;

/// One input.
pub fn run(bytes: &[u8]) {
    let Some(mut page) = Page::parse(bytes) else { return };
    assert!(!page.top.job.to_string().contains(char::is_control));
    assert!(page.ranks.iter().all(|rank| !rank.loader.to_string().contains(char::is_control)));
    let mut again = Vec::new();
    page.encode(&mut again);
    serde_json::to_vec(&page).expect("what was read can be said");
}
