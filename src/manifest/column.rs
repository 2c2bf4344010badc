//! Columns as places in the mapped file. A view holds numbers, not pointers, and each access is checked against the
//! map again: a file that is overwritten under us gives wrong values, never a read outside of it.

use std::marker::PhantomData;

use bytemuck::Pod;

/// Bytes `at..at + len` of the file.
#[derive(Debug, Clone, Copy)]
pub(super) struct Span {
    pub(super) at: usize,
    pub(super) len: usize,
}

impl Span {
    pub(super) fn bytes<'m>(&self, map: &'m [u8]) -> &'m [u8] {
        // `layout` has checked the sum against the map's length.
        map.get(self.at..self.at + self.len).unwrap_or_default()
    }
}

/// Numbers side by side.
#[derive(Debug, Clone, Copy)]
pub(super) struct Numbers<T> {
    span: Span,
    of: PhantomData<T>,
}

impl<T: Pod> Numbers<T> {
    /// `None` if the place is not aligned for the type or not a whole number of them.
    pub(super) fn new(map: &[u8], span: Span) -> Option<Self> {
        bytemuck::try_cast_slice::<u8, T>(span.bytes(map)).ok()?;
        Some(Numbers { span, of: PhantomData })
    }

    pub(super) fn all<'m>(&self, map: &'m [u8]) -> &'m [T] {
        bytemuck::try_cast_slice(self.span.bytes(map)).unwrap_or_default()
    }

    /// The `i`-th number; the type's zero outside of the column.
    pub(super) fn get(&self, map: &[u8], i: usize) -> T {
        self.all(map).get(i).copied().unwrap_or_else(T::zeroed)
    }
}

/// Bits, lowest first.
#[derive(Debug, Clone, Copy)]
pub(super) struct Bits(pub(super) Span);

impl Bits {
    pub(super) fn get(&self, map: &[u8], i: usize) -> bool {
        self.0.bytes(map).get(i / 8).is_some_and(|byte| byte >> (i % 8) & 1 == 1)
    }
}

/// A list of numbers a row: row `i` is `values[offsets[i]..offsets[i + 1]]`.
#[derive(Debug, Clone, Copy)]
pub(super) struct Lists<T> {
    pub(super) offsets: Numbers<i32>,
    pub(super) values: Numbers<T>,
}

impl<T: Pod> Lists<T> {
    pub(super) fn get<'m>(&self, map: &'m [u8], i: usize) -> &'m [T] {
        let offsets = self.offsets.all(map);
        let (Some(&from), Some(&to)) = (offsets.get(i), offsets.get(i + 1)) else { return &[] };
        self.values.all(map).get(from as usize..to as usize).unwrap_or_default()
    }

    /// The first row whose place is not behind that of the row before, or not within the values.
    pub(super) fn fault(&self, map: &[u8]) -> Option<usize> {
        let offsets = self.offsets.all(map);
        let end = self.values.all(map).len();
        // A fold without an early end vectorises; the culprit is looked for only if there is one.
        let ordered = offsets.windows(2).fold(true, |ok, w| ok & (w[0] <= w[1]));
        let first = offsets.first().is_none_or(|&o| o >= 0);
        let last = offsets.last().is_none_or(|&o| o as usize <= end);
        if ordered && first && last {
            return None;
        }
        let bad = |w: &[i32]| w[0] < 0 || w[0] > w[1] || w[1] as usize > end;
        Some(offsets.windows(2).position(bad).unwrap_or(0))
    }
}

/// A text a row, UTF-8 in the file.
pub(super) type Texts = Lists<u8>;
