//! Our full path: allocate a region, write the payload, publish; receive, validate, read, release.
//!
//! The allocator is the writer's private table; what the other says is checked against it, and what it announces is
//! checked against the slab and the generation that the region must have.

use std::sync::Arc;

use helix_shm::ring::bell::{Ringer, Sleeper};
use helix_shm::ring::slab::Slab;
use helix_shm::ring::spsc::Words;

use super::{End, ring::Ring};
use crate::shared::{REGION, REGIONS, Shared, Side};

const READY: u64 = 4;
const RELEASE: u64 = 9;
const PAYLOAD: usize = size_of::<Words>();

/// Payloads in a slab, announced over a ring, released over another.
pub struct Regions {
    ready: Ring,
    released: Ring,
    own: Arc<Slab>,
    other: Arc<Slab>,
    free: Vec<usize>,
    /// How often each of our regions was granted.
    granted: Vec<u64>,
    /// How often each of the other's was announced to us.
    announced: Vec<u64>,
    /// Rings the other's bell as well, and looks only at lanes that claim news.
    bell: Option<(Ringer, Sleeper)>,
}

impl Regions {
    /// Over four rings from `first` on. With `bell` each message is followed by the ring that a sleeper would need.
    pub fn new(shared: &Shared, first: usize, bell: bool) -> std::io::Result<Regions> {
        let [own, other] = shared.slabs.clone();
        let (own_entry, other_entry) = if shared.side() == Side::A { (0, 1) } else { (1, 0) };
        let bell = if bell {
            let (own_fd, other_fd) = shared.bells()?;
            let ringer = Ringer::new(shared.hints.clone(), other_entry, other_fd.into());
            let sleeper = Sleeper::new(shared.hints.clone(), own_entry, own_fd.into());
            Some((ringer.map_err(std::io::Error::other)?, sleeper.map_err(std::io::Error::other)?))
        } else {
            None
        };
        Ok(Regions {
            ready: Ring::new(shared, first).map_err(std::io::Error::other)?,
            released: Ring::new(shared, first + 2).map_err(std::io::Error::other)?,
            own,
            other,
            free: (0..REGIONS).collect(),
            granted: vec![0; REGIONS],
            announced: vec![0; REGIONS],
            bell,
        })
    }

    fn reclaim(&mut self) {
        while let Some([kind, region, generation, ..]) = self.released.recv() {
            let known = self.granted.get(region as usize);
            assert!(kind == RELEASE && known == Some(&generation), "a release that fits no grant");
            self.free.push(region as usize);
        }
    }
}

impl End for Regions {
    #[inline(always)]
    fn send(&mut self, message: &Words) -> bool {
        if self.free.is_empty() {
            self.reclaim();
        }
        let Some(region) = self.free.pop() else { return false };
        let offset = region * REGION;
        // SAFETY: the region is free: nobody reads there until the message below, and only we write in this slab.
        let payload = unsafe { self.own.slice_mut(offset, PAYLOAD) };
        for (to, from) in payload.chunks_exact_mut(8).zip(message) {
            to.copy_from_slice(&from.to_ne_bytes());
        }
        let generation = self.granted[region] + 1;
        let ready = [READY, region as u64, offset as u64, PAYLOAD as u64, generation, 0, 0];
        if !self.ready.send(&ready) {
            // The region is back already, but the ring's consumer says lazily how far it is.
            self.free.push(region);
            return false;
        }
        self.granted[region] = generation;
        if let Some((ringer, _)) = &self.bell {
            ringer.ring(0);
        }
        true
    }

    #[inline(always)]
    fn recv(&mut self) -> Option<Words> {
        let [kind, region, offset, written, generation, ..] = match self.ready.recv() {
            Some(words) => words,
            None => {
                if let Some((_, sleeper)) = &self.bell {
                    sleeper.take(|lane| assert_eq!(lane, 0));
                }
                return None;
            }
        };
        let announced = self.announced.get_mut(region as usize).expect("a region that exists");
        *announced += 1;
        let range = self.other.range(offset, written).expect("a place inside the slab");
        let fits = kind == READY && range.start == region as usize * REGION && range.len() == PAYLOAD;
        assert!(fits && generation == *announced, "a message that fits no grant");
        // SAFETY: the region was announced to us and is not released.
        let payload = unsafe { self.other.slice(range.start, range.len()) };
        let mut message = Words::default();
        for (to, from) in message.iter_mut().zip(payload.chunks_exact(8)) {
            *to = u64::from_ne_bytes(from.try_into().expect("eight bytes"));
        }
        assert!(self.released.send(&[RELEASE, region, generation, 0, 0, 0, 0]), "room for each region");
        Some(message)
    }
}
