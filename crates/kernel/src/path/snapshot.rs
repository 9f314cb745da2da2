//! Copies of arrays that the programs fill, to put them back: what a window without probes adds counts for its cost
//! only. For arrays whose elements begin with a count, and while nothing is attached.

use std::collections::BTreeMap;

use crate::net::mapping::Mapping;

/// The elements of an array that are not empty, by number.
#[derive(Debug)]
pub(super) struct Snapshot {
    element_bytes: usize,
    elements: BTreeMap<usize, Vec<u64>>,
}

impl Snapshot {
    /// Copies an array.
    pub fn take(array: &Mapping, element_bytes: usize) -> Self {
        let elements = filled(array, element_bytes)
            .map(|number| {
                let mut words = Vec::new();
                array.append_words(number * element_bytes, element_bytes / 8, &mut words);
                (number, words)
            })
            .collect();
        Self {
            element_bytes,
            elements,
        }
    }

    /// Puts it back. The mapping must be writable.
    pub fn restore(&self, array: &Mapping) {
        let empty = vec![0; self.element_bytes / 8];
        for number in filled(array, self.element_bytes) {
            let words = self.elements.get(&number).unwrap_or(&empty);
            array.store_words(number * self.element_bytes, words);
        }
    }
}

/// Numbers of the elements whose count is not 0. Most are empty, and pages of these are not touched by a copy.
fn filled(array: &Mapping, element_bytes: usize) -> impl Iterator<Item = usize> {
    use std::sync::atomic::Ordering::Relaxed;
    (0..array.length_bytes() / element_bytes)
        .filter(move |number| array.word(number * element_bytes).load(Relaxed) != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_added_is_taken_back() {
        let array = Mapping::anonymous(4096).unwrap();
        array.store_words(16, &[2, 7]);
        array.store_words(48, &[1, 3]);
        let snapshot = Snapshot::take(&array, 16);
        array.store_words(16, &[5, 9]);
        array.store_words(32, &[4, 4]);
        snapshot.restore(&array);
        let mut words = Vec::new();
        array.append_words(0, 8, &mut words);
        assert_eq!(words, [0, 0, 2, 7, 0, 0, 1, 3]);
    }
}
