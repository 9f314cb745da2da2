//! Values of which only the changes are kept, or all where most differ from the one before.

/// A word of every row.
#[derive(Clone)]
pub enum Kept {
    /// In which rows it changes: of words that mostly stay.
    Changes(History),
    /// Row by row: of words that mostly change.
    Rows(Vec<u64>),
}

impl Kept {
    /// Forgets everything; the memory stays.
    pub fn clear(&mut self) {
        match self {
            Self::Changes(history) => history.clear(),
            Self::Rows(words) => words.clear(),
        }
    }

    /// The words that are kept, in the order of the rows.
    pub fn words(&self) -> &[u64] {
        match self {
            Self::Changes(history) => history.words(),
            Self::Rows(words) => words,
        }
    }
}

/// A word of every row, as the rows in which it differs from the row before.
#[derive(Clone)]
pub struct History {
    count: usize,
    rows: Vec<u32>,
    words: Vec<u64>,
}

impl History {
    /// Room for `capacity` rows.
    pub fn new(capacity: usize) -> Self {
        Self {
            count: 0,
            rows: vec![0; capacity],
            words: vec![0; capacity],
        }
    }

    /// Adds words and the rows from which on they hold; rows that are left out have the word before.
    ///
    /// # Panics
    /// When there is no room: a caller's mistake.
    #[inline]
    pub fn extend(&mut self, changes: impl ExactSizeIterator<Item = (u32, u64)>) {
        // The room that they take at most.
        let end = self.count + changes.len();
        let (rows, kept) = (&mut self.rows[..end], &mut self.words[..end]);
        let mut count = self.count;
        // Of the first row of all there is no word before.
        let mut first = usize::from(count == 0);
        let mut before = kept.get(count.wrapping_sub(1)).copied().unwrap_or(0);
        for (row, word) in changes {
            // Written in any case, kept when it differs: there is nothing to predict, and what is
            // written over lies in the first-level cache.
            rows[count] = row;
            kept[count] = word;
            count += usize::from(word != before) | first;
            before = word;
            first = 0;
        }
        self.count = count;
    }

    /// Forgets everything; the memory stays.
    pub fn clear(&mut self) {
        self.count = 0;
    }

    /// The rows in which the word changes; the first row is one of them.
    pub fn rows(&self) -> &[u32] {
        &self.rows[..self.count]
    }

    /// The word from each change on.
    pub fn words(&self) -> &[u64] {
        &self.words[..self.count]
    }
}

/// The values of one column, as runs of values that are alike.
#[derive(Default)]
pub struct Runs {
    rows: usize,
    width_bytes: usize,
    count: usize,
    starts: Vec<u32>,
    values: Vec<u8>,
}

impl Runs {
    /// Becomes the runs of what `map` makes of a word, little-endian, over `rows` rows. Words that
    /// differ may give equal values. Where five values of eight differ from the one before, each is
    /// a run of its own: as runs they would take more room than one by one.
    #[inline]
    pub fn take<const WIDTH: usize>(
        &mut self,
        kept: &Kept,
        rows: usize,
        map: impl Fn(u64) -> [u8; WIDTH],
    ) {
        let words = kept.words();
        if self.starts.len() < words.len() {
            self.starts.resize(words.len(), 0);
            self.values.resize(size_of_val(words), 0);
        }
        self.rows = rows;
        self.width_bytes = WIDTH;
        match kept {
            Kept::Changes(history) => self.take_changes(history, map),
            Kept::Rows(words) => self.take_rows(words, map),
        }
    }

    #[inline]
    fn take_changes<const WIDTH: usize>(
        &mut self,
        history: &History,
        map: impl Fn(u64) -> [u8; WIDTH],
    ) {
        self.count = 0;
        let values = self.values.as_chunks_mut::<WIDTH>().0;
        let mut before = None;
        for (row, word) in history.rows().iter().zip(history.words()) {
            let value = map(*word);
            // Written in any case, kept when it differs: there is nothing to predict.
            self.starts[self.count] = *row;
            values[self.count] = value;
            self.count += usize::from(before != Some(value));
            before = Some(value);
        }
    }

    #[inline]
    fn take_rows<const WIDTH: usize>(&mut self, words: &[u64], map: impl Fn(u64) -> [u8; WIDTH]) {
        let values = &mut self.values.as_chunks_mut::<WIDTH>().0[..words.len()];
        for (value, word) in values.iter_mut().zip(words) {
            *value = map(*word);
        }
        let changes = values
            .iter()
            .zip(values.iter().skip(1))
            .filter(|(before, value)| before != value)
            .count();
        self.count = values.len();
        if changes * 8 > values.len() * 5 {
            for (row, start) in (0..).zip(&mut self.starts[..words.len()]) {
                *start = row;
            }
            return;
        }
        let mut count = 0;
        let mut before = None;
        for row in 0..values.len() {
            let value = values[row];
            self.starts[count] = row as u32;
            values[count] = value;
            count += usize::from(before != Some(value));
            before = Some(value);
        }
        self.count = count;
    }

    /// Rows of the column.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Bytes of a value.
    pub fn width_bytes(&self) -> usize {
        self.width_bytes
    }

    /// The first row of each run.
    pub fn starts(&self) -> &[u32] {
        &self.starts[..self.count]
    }

    /// The value of each run, one behind the other.
    pub fn values(&self) -> &[u8] {
        &self.values[..self.count * self.width_bytes]
    }

    /// The value of each run as a number.
    pub fn numbers(&self) -> impl Iterator<Item = u64> {
        self.values()
            .chunks_exact(self.width_bytes.max(1))
            .map(|value| {
                value
                    .iter()
                    .rev()
                    .fold(0, |number, byte| number << 8 | u64::from(*byte))
            })
    }

    /// The first row of each run, and the row behind its last.
    pub fn bounds(&self) -> impl Iterator<Item = (u32, u32)> {
        let starts = self.starts();
        let ends = starts.iter().skip(1).copied().chain([self.rows as u32]);
        starts.iter().copied().zip(ends)
    }

    /// The value of every row: as they lie here when all differ, else written to `room`.
    pub fn every_row<'a>(&'a self, room: &'a mut Vec<u8>) -> &'a [u8] {
        if self.count == self.rows {
            return self.values();
        }
        room.clear();
        self.expand(room);
        room
    }

    /// Appends the value of every row to `out`.
    pub fn expand(&self, out: &mut Vec<u8>) {
        match self.width_bytes {
            _ if self.count == self.rows => out.extend_from_slice(self.values()),
            1 => self.expand_as::<1>(out),
            2 => self.expand_as::<2>(out),
            4 => self.expand_as::<4>(out),
            _ => self.expand_as::<8>(out),
        }
    }

    fn expand_as<const WIDTH: usize>(&self, out: &mut Vec<u8>) {
        let start = out.len();
        out.resize(start + self.rows * WIDTH, 0);
        let slots = out[start..].as_chunks_mut::<WIDTH>().0;
        for ((start, end), value) in self.bounds().zip(self.values().as_chunks::<WIDTH>().0) {
            slots[start as usize..end as usize].fill(*value);
        }
    }
}
