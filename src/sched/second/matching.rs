//! Parts matched to ranks one to one, so that as much as can be stays where it is: the Hungarian method in the form
//! of shortest augmenting paths, `O(n³)`.

/// For each row the column that it is matched with, so that the sum of `cost[row][column]` is least. `cost` is square
/// and finite.
pub(super) fn assign(cost: &[Vec<f64>]) -> Vec<usize> {
    let n = cost.len();
    // Row and column 0 stand for "none"; potentials keep all reduced costs at or above 0.
    let (mut rows, mut columns) = (vec![0.0; n + 1], vec![0.0; n + 1]);
    let mut row_of = vec![0; n + 1];
    for row in 1..=n {
        row_of[0] = row;
        let mut nearest = vec![f64::INFINITY; n + 1];
        let mut before = vec![0; n + 1];
        let mut seen = vec![false; n + 1];
        let mut at = 0;
        while row_of[at] != 0 {
            seen[at] = true;
            let from = row_of[at];
            let (mut least, mut next) = (f64::INFINITY, 0);
            for column in (1..=n).filter(|c| !seen[*c]) {
                let reduced = cost[from - 1][column - 1] - rows[from] - columns[column];
                if reduced < nearest[column] {
                    (nearest[column], before[column]) = (reduced, at);
                }
                if nearest[column] < least {
                    (least, next) = (nearest[column], column);
                }
            }
            for column in 0..=n {
                if seen[column] {
                    rows[row_of[column]] += least;
                    columns[column] -= least;
                } else {
                    nearest[column] -= least;
                }
            }
            at = next;
        }
        while at != 0 {
            row_of[at] = row_of[before[at]];
            at = before[at];
        }
    }
    let mut matched = vec![0; n];
    for column in 1..=n {
        matched[row_of[column] - 1] = column - 1;
    }
    matched
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn sum(cost: &[Vec<f64>], matched: &[usize]) -> f64 {
        matched.iter().enumerate().map(|(row, column)| cost[row][*column]).sum()
    }

    fn least(cost: &[Vec<f64>], row: usize, used: &mut Vec<bool>) -> f64 {
        if row == cost.len() {
            return 0.0;
        }
        let mut best = f64::INFINITY;
        for column in 0..cost.len() {
            if !std::mem::replace(&mut used[column], true) {
                best = best.min(cost[row][column] + least(cost, row + 1, used));
                used[column] = false;
            }
        }
        best
    }

    proptest! {
        #[test]
        fn no_other_matching_is_cheaper(n in 1usize..6, values in proptest::collection::vec(0u32..50, 36)) {
            let cost: Vec<Vec<f64>> = (0..n).map(|r| (0..n).map(|c| f64::from(values[r * 6 + c])).collect()).collect();
            let matched = assign(&cost);
            let mut columns = matched.clone();
            columns.sort_unstable();
            prop_assert_eq!(columns, (0..n).collect::<Vec<_>>());
            prop_assert_eq!(sum(&cost, &matched), least(&cost, 0, &mut vec![false; n]));
        }
    }

    #[test]
    fn nothing_is_matched_with_nothing() {
        assert!(assign(&[]).is_empty());
    }
}
