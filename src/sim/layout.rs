//! Where ranks and workers are: on the NUMA nodes of a box, or on several machines.

use std::sync::Arc;

/// A machine of several.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Node {
    /// Ranks on it.
    pub ranks: u32,
    /// Cores that decode.
    pub cores: u16,
}

/// The servers, and what is on each.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Layout {
    /// So many NUMA nodes; cores and ranks are spread over them evenly.
    Even(u16),
    /// Machines, each a server. Together they have the job's ranks and cores.
    Nodes(Arc<[Node]>),
}

impl Layout {
    /// Servers.
    pub fn servers(&self) -> u16 {
        match self {
            Layout::Even(servers) => (*servers).max(1),
            Layout::Nodes(nodes) => (nodes.len() as u16).max(1),
        }
    }

    /// The server of each of `count` things that are spread evenly, or as the nodes have them.
    fn spread(&self, count: u32, of: impl Fn(&Node) -> u32) -> Vec<u16> {
        match self {
            Layout::Even(servers) => {
                (0..count).map(|i| (u64::from(i) * u64::from(*servers) / u64::from(count.max(1))) as u16).collect()
            }
            Layout::Nodes(nodes) => {
                let all = (0..).zip(nodes.iter()).flat_map(|(server, node)| (0..of(node)).map(move |_| server));
                // What the nodes have no room for is on the last.
                all.chain(std::iter::repeat(self.servers() - 1)).take(count as usize).collect()
            }
        }
    }

    /// The server of each rank.
    pub(super) fn ranks(&self, world: u32) -> Vec<u16> {
        self.spread(world, |node| node.ranks)
    }

    /// The workers that all ranks share, one a core: numbers and servers.
    pub(super) fn shared(&self, cores: u16) -> Vec<(u16, u16)> {
        (0..).zip(self.spread(cores.into(), |node| node.cores.into())).collect()
    }

    /// Workers of the ranks' own, `each` a rank: the `w`-th is of rank `w mod world`, on its server. A machine of
    /// several has no more of them than cores.
    pub(super) fn own(&self, world: u32, each: u16, cores: u16) -> Vec<(u16, u16)> {
        let ranks = self.ranks(world);
        let of = |rank: usize| match self {
            Layout::Even(_) => each,
            Layout::Nodes(nodes) => {
                let node = &nodes[usize::from(ranks[rank])];
                each.min((u32::from(node.cores) / node.ranks.max(1)).max(1) as u16)
            }
        };
        let all = (0..each).flat_map(|nth| (0..ranks.len()).map(move |rank| (nth, rank)));
        let mine = all.filter(|(nth, rank)| *nth < of(*rank));
        mine.map(|(nth, rank)| (nth * world as u16 + rank as u16, ranks[rank])).take(cores.into()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn even_ones_are_spread_and_nodes_have_their_own() {
        let even = Layout::Even(2);
        assert_eq!(even.ranks(4), [0, 0, 1, 1]);
        assert_eq!(even.shared(4), [(0, 0), (1, 0), (2, 1), (3, 1)]);
        assert_eq!(even.own(2, 2, 4), [(0, 0), (1, 1), (2, 0), (3, 1)]);
        assert_eq!(even.own(2, 2, 3).len(), 3);
        let node = |ranks, cores| Node { ranks, cores };
        let nodes = Layout::Nodes([node(2, 6), node(1, 1), node(1, 2)].into());
        assert_eq!(nodes.ranks(4), [0, 0, 1, 2]);
        assert_eq!(nodes.ranks(5), [0, 0, 1, 2, 2]);
        assert_eq!(nodes.shared(9).iter().filter(|(_, server)| *server == 0).count(), 6);
        // Three a rank on the first, one on the second, two on the third: worker w is of rank w mod 4.
        let own = nodes.own(4, 12, 9);
        assert_eq!(own, [(0, 0), (1, 0), (2, 1), (3, 2), (4, 0), (5, 0), (7, 2), (8, 0), (9, 0)]);
    }
}
