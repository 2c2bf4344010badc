//! What comes from other ranks: a step's plan as the daemon tells it, message by message, and the samples that come by
//! it, which lie in those ranks' slabs and are mapped from there.

use std::collections::BTreeMap;
use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::sync::Arc;

use super::error::LoaderError;
use super::ledger::{Ledger, Loan};
use super::table::{Rules, Slot, SlotState, Violation, expect};
use crate::proto::handover::{Actual, Dealt, Shift};
use crate::proto::message::{Body, Entry, Handed, Move, Plan, Tokens, Words};
use crate::proto::session::Lent;
use crate::proto::transform::Span;
use crate::ring::slab::{self, check_lent};

/// A sample that comes, where it lies.
pub(crate) struct Coming {
    pub(crate) slot: Slot,
    from: u32,
    /// Which slab.
    slab: u64,
    pieces: Vec<Lying>,
}

/// Frames of a sample in another rank's slab.
struct Lying {
    offset: u64,
    bytes: u64,
    loan: Loan,
}

/// A sample that has come.
pub(crate) struct Came {
    pub(crate) slot: Slot,
    pub(crate) at: Place,
}

/// Where a sample is that has come.
pub(crate) enum Place {
    /// In the other rank's slab.
    Lent(Borrowed),
    /// It lay there in several places, or could not be mapped.
    Copied(Vec<u8>),
}

/// A sample in another rank's slab, until it is dropped.
pub(crate) struct Borrowed {
    // In this order: unmapped before the other rank may use the place again.
    pub(crate) bytes: slab::Lent,
    _loans: Vec<Loan>,
}

/// How a step was balanced after decoding, as far as a rank's batch is concerned.
#[derive(Default)]
pub(crate) struct Handover {
    /// The low half of the plan's digest; 0 without one.
    pub(crate) digest: u32,
    /// The samples that come, in the order of the plan.
    pub(crate) coming: Vec<Coming>,
    /// The same, when they were fetched.
    pub(crate) came: Vec<Came>,
}

/// The slabs of other ranks, by the numbers of their inodes: another process of a rank has another slab.
#[derive(Default)]
pub(super) struct Slabs(BTreeMap<u64, (u32, Arc<File>)>);

impl Slabs {
    /// Takes in what the daemon passed on.
    pub(super) fn take(&mut self, rank: u32, bytes: u64, fd: OwnedFd) -> Result<(), Violation> {
        let bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
        let unfit = |e: &dyn std::fmt::Display| Violation::Packet(format!("the slab of rank {rank}: {e}"));
        check_lent(&fd, bytes).map_err(|e| unfit(&e))?;
        let file = File::from(fd);
        let id = file.metadata().map_err(|e| unfit(&e))?.ino();
        // What lies in an earlier one of that rank's is mapped by itself.
        self.0.retain(|_, (of, _)| *of != rank);
        self.0.insert(id, (rank, Arc::new(file)));
        Ok(())
    }

    /// Whether all is there that a batch needs. What is not is on its way.
    pub(super) fn suffice(&self, handover: &Handover) -> bool {
        handover.coming.iter().all(|coming| self.0.contains_key(&coming.slab))
    }

    /// The slabs that a batch needs, to be used without the lock.
    pub(super) fn of(&self, handover: &Handover) -> Slabs {
        let its = handover.coming.iter().filter_map(|c| Some((c.slab, self.0.get(&c.slab)?.clone())));
        Slabs(its.collect())
    }

    /// Maps the samples that come.
    pub(super) fn fetch(&self, handover: &mut Handover, ledger: &Ledger) -> Result<(), LoaderError> {
        for coming in std::mem::take(&mut handover.coming) {
            let at = self.place((coming.from, coming.slab), coming.pieces, ledger)?;
            crate::crash::point("handed.mapped");
            handover.came.push(Came { slot: coming.slot, at });
        }
        Ok(())
    }

    fn place(&self, (from, slab): (u32, u64), pieces: Vec<Lying>, ledger: &Ledger) -> Result<Place, LoaderError> {
        let system = |e: &dyn std::fmt::Display| LoaderError::System {
            doing: "read a sample in another rank's slab",
            reason: format!("rank {from}: {e}"),
        };
        let (_, file) = self.0.get(&slab).ok_or_else(|| system(&"its slab was not passed on"))?;
        let bytes = pieces.iter().map(|p| p.bytes).sum::<u64>();
        let whole = pieces.windows(2).all(|w| w[0].offset + w[0].bytes == w[1].offset);
        if whole && let Some(first) = pieces.first() {
            match slab::Lent::open(&**file, first.offset, bytes as usize) {
                Ok(bytes) => {
                    let loans = pieces.into_iter().map(|p| p.loan).collect();
                    return Ok(Place::Lent(Borrowed { bytes, _loans: loans }));
                }
                Err(e) => say_copied_once(&e),
            }
        }
        let mut copy = vec![0; bytes as usize];
        let mut rest = &mut copy[..];
        for piece in &pieces {
            let (part, behind) = rest.split_at_mut(piece.bytes as usize);
            file.read_exact_at(part, piece.offset).map_err(|e| system(&e))?;
            rest = behind;
        }
        ledger.copied(bytes);
        Ok(Place::Copied(copy))
    }
}

fn say_copied_once(why: &dyn std::fmt::Display) {
    static SAID: std::sync::Once = std::sync::Once::new();
    SAID.call_once(|| {
        tracing::warn!(
            "samples from other ranks are copied, since their slabs cannot be mapped: {why}; with slabs of huge pages \
             a larger vm.nr_hugepages helps"
        );
    });
}

/// A plan that is being told.
pub(super) struct Hearing {
    pub(super) plan: Plan,
    pub(super) dealt: Dealt,
    pub(super) coming: Vec<Coming>,
    /// The move that is being told of.
    open: Option<Open>,
}

struct Open {
    from: u32,
    slot: u16,
    entry: Option<Entry>,
    /// Pieces that are still to come.
    left: u32,
    /// The frame that the next piece begins with.
    next: u16,
    /// Which slab the pieces are in.
    slab: Option<u64>,
    pieces: Vec<Lying>,
}

impl Hearing {
    pub(super) fn new(plan: Plan, rules: &Rules) -> Result<Hearing, Violation> {
        const ME: &str = "Plan";
        expect(ME, "session", plan.head.session == rules.session, plan.head.session, rules.session)?;
        expect(ME, "rebalance", rules.rebalance, "a plan", "none, as rebalance is off")?;
        let most = rules.global_batch;
        for (field, found) in [("tokens", plan.tokens), ("moves", plan.moves)] {
            expect(ME, field, u64::from(found) <= most, found, format!("at most {most}"))?;
        }
        let (total, finite) = (plan.total, plan.total.is_finite() && plan.total >= 0.0);
        expect(ME, "total", finite, total, "a number from 0")?;
        let dealt = Dealt { total, ..Dealt::default() };
        Ok(Hearing { plan, dealt, coming: Vec::new(), open: None })
    }

    /// Whether all of it was told.
    pub(super) fn is_complete(&self) -> bool {
        let told = (self.dealt.actual.len() as u32, self.dealt.shifts.len() as u32);
        self.open.is_none() && told == (self.plan.tokens, self.plan.moves)
    }

    /// Takes in the next message.
    pub(super) fn hear(&mut self, words: &Words, rules: &Rules, ledger: &Arc<Ledger>) -> Result<(), Violation> {
        if let Some(open) = &mut self.open {
            if open.entry.is_none() {
                let entry = Entry::parse(words)?;
                check_entry(&entry, open, rules)?;
                open.entry = Some(entry);
                return Ok(());
            }
            open.piece(Handed::parse(words)?, &self.plan, rules, ledger)?;
            if open.left == 0
                && let Some(open) = self.open.take()
            {
                self.coming.push(open.close(rules)?);
            }
            return Ok(());
        }
        if self.dealt.actual.len() < self.plan.tokens as usize {
            let Tokens { head, tokens, grant, rank, .. } = Tokens::parse(words)?;
            self.place("Tokens", head.session, grant, rank, rules)?;
            self.dealt.actual.push(Actual { rank, slot: head.slot.into(), tokens });
            return Ok(());
        }
        self.shift(Move::parse(words)?, rules)
    }

    fn place(&self, me: &'static str, session: u16, grant: u32, rank: u32, rules: &Rules) -> Result<(), Violation> {
        expect(me, "session", session == rules.session, session, rules.session)?;
        expect(me, "grant", grant == self.plan.grant, grant, self.plan.grant)?;
        expect(me, "rank", rank < rules.world, rank, format!("below {}", rules.world))
    }

    fn shift(&mut self, m: Move, rules: &Rules) -> Result<(), Violation> {
        const ME: &str = "Move";
        let Move { head, grant, from, to, pieces, .. } = m;
        self.place(ME, head.session, grant, from.max(to), rules)?;
        let comes = to == rules.rank && self.plan.dealt == 0;
        let most = u32::from(rules.transform.frames);
        let right = if comes { (1..=most).contains(&pieces) } else { pieces == 0 };
        expect(ME, "pieces", right, pieces, if comes { format!("from 1 to {most}") } else { "0".into() })?;
        self.dealt.shifts.push(Shift { from, slot: head.slot.into(), to });
        if comes {
            let (slot, pieces, left) = (head.slot, Vec::new(), pieces);
            self.open = Some(Open { from, slot, entry: None, left, next: 0, slab: None, pieces });
        }
        Ok(())
    }
}

fn check_entry(e: &Entry, open: &Open, rules: &Rules) -> Result<(), Violation> {
    const ME: &str = "Entry";
    expect(ME, "session", e.head.session == rules.session, e.head.session, rules.session)?;
    expect(ME, "slot", e.head.slot == open.slot, e.head.slot, open.slot)?;
    expect(ME, "sample", e.sample < rules.rows, e.sample, format!("below {}", rules.rows))?;
    expect(ME, "home_rank", e.home_rank < rules.world, e.home_rank, format!("below {}", rules.world))?;
    expect(ME, "home_share", e.home_share > 0, e.home_share, "1 at least")?;
    expect(ME, "tokens", e.tokens.is_finite(), e.tokens, "a number")
}

impl Open {
    fn piece(&mut self, h: Handed, plan: &Plan, rules: &Rules, ledger: &Arc<Ledger>) -> Result<(), Violation> {
        const ME: &str = "Handed";
        // The block is lent from here on, and given back whatever is wrong with the rest.
        let lent = Lent { rank: h.from, grant: h.of, offset: h.block, len: h.block_len, slab: h.slab };
        let loan = ledger.borrow(lent);
        let slab = *self.slab.get_or_insert(h.slab);
        expect(ME, "slab", h.slab == slab, h.slab, slab)?;
        expect(ME, "session", h.head.session == rules.session, h.head.session, rules.session)?;
        expect(ME, "slot", h.head.slot == self.slot, h.head.slot, self.slot)?;
        expect(ME, "grant", h.grant == plan.grant, h.grant, plan.grant)?;
        expect(ME, "from", h.from == self.from, h.from, self.from)?;
        let (span, frames) = (Span { first: h.first, frames: h.frames }, rules.transform.frames);
        let follows = span.first == self.next && span.end() <= frames.into();
        expect(ME, "frames", follows, format!("{span:?}"), format!("frames from {} of {frames}", self.next))?;
        expect(ME, "frames", rules.transform.has_parts() || span.frames == frames, span.frames, frames)?;
        let sample = self.entry.map_or(0, |entry| entry.sample);
        let (_, bytes) = rules.transform.place_in((rules.shape)(sample), span).unwrap_or_default();
        let inside = h.offset >= h.block && h.offset + bytes <= h.block + h.block_len;
        let wanted = || format!("{bytes} bytes inside {}+{}", h.block, h.block_len);
        expect(ME, "offset", inside, h.offset, wanted())?;
        self.next += span.frames;
        self.left -= 1;
        self.pieces.push(Lying { offset: h.offset, bytes, loan });
        Ok(())
    }

    fn close(self, rules: &Rules) -> Result<Coming, Violation> {
        let Open { from, entry, next, slab, pieces, .. } = self;
        let slab = slab.unwrap_or(0);
        expect("Handed", "frames", next == rules.transform.frames, next, rules.transform.frames)?;
        let Entry { sample, offset, len, home_rank, home_share, tokens, .. } =
            entry.unwrap_or_else(bytemuck::Zeroable::zeroed);
        let (written, shape) = (rules.bytes(sample), (rules.shape)(sample));
        let state = SlotState::Ready { written, shape };
        Ok(Coming {
            slot: Slot { sample, offset, len, home_rank, home_share, tokens, bin: 0, state },
            from,
            slab,
            pieces,
        })
    }
}
