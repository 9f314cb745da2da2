//! The listeners of a log, as they were when the kernel's table was last read.

use parshall_core::abi::TcpListener;
use parshall_core::tcp_log::ListenerRow;
use std::collections::{BTreeMap, BTreeSet};

/// All listeners that still listen, and those that ended after their accept queue had been full.
#[derive(Debug)]
pub struct ListenerTable {
    rows: BTreeMap<u32, ListenerRow>,
    ended: BTreeSet<u64>,
    monotonic_offset_ns: i64,
}

impl ListenerTable {
    /// An empty table; the offset turns the records' clock into that of the log.
    pub fn new(monotonic_offset_ns: i64) -> Self {
        Self {
            rows: BTreeMap::new(),
            ended: BTreeSet::new(),
            monotonic_offset_ns,
        }
    }

    /// Takes in the kernel's table. Returns the rows that are new or changed, and the cookies of listeners that may leave
    /// the kernel's table: they had ended when it was read before, so no packet that found them is still on its way.
    pub fn update(
        &mut self,
        records: &[TcpListener],
        cgroup_path: &mut dyn FnMut(u64) -> Option<String>,
    ) -> (Vec<ListenerRow>, Vec<u64>) {
        let (mut changed, mut leaving) = (Vec::new(), Vec::new());
        for record in records {
            let known = self.rows.get(&record.listener);
            let mut row = ListenerRow::new(record, self.monotonic_offset_ns);
            row.cgroup = known
                .and_then(|known| known.cgroup.clone())
                .or_else(|| cgroup_path(row.cgroup_id));
            if known != Some(&row) {
                changed.push(row.clone());
            }
            if row.ended && !self.ended.insert(row.socket_cookie) {
                self.ended.remove(&row.socket_cookie);
                leaving.push(row.socket_cookie);
                if !row.has_refused() {
                    self.rows.remove(&row.listener);
                    continue;
                }
            }
            self.rows.insert(row.listener, row);
        }
        (changed, leaving)
    }

    /// Listeners whose accept queue was full when somebody came.
    pub fn refusing(&self) -> Vec<ListenerRow> {
        let rows = self.rows.values();
        rows.filter(|row| row.has_refused()).cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_come_when_they_changed_and_ended_listeners_leave_at_the_second_reading() {
        let mut table = ListenerTable::new(0);
        let mut update = |records: &[TcpListener]| {
            let (changed, leaving) = table.update(records, &mut |_| None);
            let numbers: Vec<_> = changed.iter().map(|row| row.listener).collect();
            (numbers, leaving, table.rows.len(), table.refusing().len())
        };
        let quiet = TcpListener {
            listener: 1,
            socket_cookie: 11,
            ..TcpListener::default()
        };
        let full = TcpListener {
            listener: 2,
            socket_cookie: 12,
            syns_refused: 3,
            ..TcpListener::default()
        };
        assert_eq!(update(&[quiet, full]), (vec![1, 2], vec![], 2, 1));
        assert_eq!(update(&[quiet, full]), (vec![], vec![], 2, 1));
        let [quiet, full] = [quiet, full].map(|record| TcpListener {
            has_ended: 1,
            ..record
        });
        assert_eq!(update(&[quiet, full]), (vec![1, 2], vec![], 2, 1));
        let last = TcpListener {
            acks_refused: 1,
            ..full
        };
        assert_eq!(update(&[quiet, last]), (vec![2], vec![11, 12], 1, 1));
        assert_eq!(update(&[]), (vec![], vec![], 1, 1));
    }
}
