//! Sizes that follow from other sizes: how vision models bring pictures of any shape to what they take.

/// Height and width as multiples of `unit`, the area within `least..=most` pixels, the aspect ratio kept as well as that
/// allows: the `smart_resize` of Qwen2-VL and its successors.
pub fn smart(height: u64, width: u64, unit: u64, least: u64, most: u64) -> (u64, u64) {
    // To the nearest, and from the middle to the even one, as Python rounds.
    let round = |side: u64| {
        let (whole, rest) = (side / unit, side % unit);
        let up = 2 * rest > unit || (2 * rest == unit && whole % 2 == 1);
        (whole + u64::from(up)).max(1) * unit
    };
    let (h, w) = (round(height), round(width));
    let area = (height * width) as f64;
    if h * w > most {
        let shrink = (area / most as f64).sqrt();
        let floor = |side: u64| ((side as f64 / shrink / unit as f64).floor() as u64).max(1) * unit;
        (floor(height), floor(width))
    } else if h * w < least {
        let grow = (least as f64 / area).sqrt();
        let ceil = |side: u64| (side as f64 * grow / unit as f64).ceil() as u64 * unit;
        (ceil(height), ceil(width))
    } else {
        (h, w)
    }
}

/// Columns and rows of square tiles, at most `most` of them, whose aspect ratio is nearest to the picture's; of two
/// that are equally near the one with more tiles if the picture has pixels for half of them: the `dynamic_preprocess`
/// of InternVL.
pub fn tiles(height: u64, width: u64, side: u64, most: u64) -> (u64, u64) {
    let ratio = width as f64 / height as f64;
    let mut best = ((1, 1), f64::INFINITY);
    for count in 1..=most {
        for columns in (1..=count).filter(|columns| count % columns == 0) {
            let rows = count / columns;
            let far = (ratio - columns as f64 / rows as f64).abs();
            let enough = 2 * width * height > side * side * count;
            if far < best.1 || (far == best.1 && enough) {
                best = ((columns, rows), far);
            }
        }
    }
    best.0
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The published code, run in Python over sizes of every shape, a line each.
    const PUBLISHED: &str = include_str!("../../tests/data/fit.tsv");

    fn published(what: &str) -> impl Iterator<Item = Vec<u64>> {
        let lines = PUBLISHED.lines().filter_map(move |line| line.strip_prefix(what)?.strip_prefix('\t'));
        lines.map(|line| line.split('\t').map(|n| n.parse().expect("a number")).collect())
    }

    #[test]
    fn smart_sizes_are_those_of_qwen() {
        let mut seen = 0;
        for line in published("smart") {
            let [h, w, least, most, high, wide] = line[..] else { panic!("{line:?}") };
            assert_eq!(smart(h, w, 28, least, most), (high, wide), "{h}x{w} within {least} to {most}");
            seen += 1;
        }
        assert!(seen > 100, "{seen}");
        assert_eq!(smart(70, 42, 28, 1, u64::MAX), (56, 56), "2.5 units are 2, 1.5 are 2");
    }

    #[test]
    fn tiles_are_those_of_internvl() {
        let mut seen = 0;
        for line in published("tiles") {
            let [h, w, most, columns, rows] = line[..] else { panic!("{line:?}") };
            assert_eq!(tiles(h, w, 448, most), (columns, rows), "{h}x{w} in at most {most}");
            seen += 1;
        }
        assert!(seen > 100, "{seen}");
    }
}
