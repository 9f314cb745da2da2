//! What rows say of their flows.

use super::*;
use crate::abi::TcpStateRecord;
use crate::abi::{EVENT_CONGESTION_STATE, EVENT_PACKET, LOSS_STATE_KNOWN, LOSS_STATE_REORDERED};
use crate::protocols::TCP_SYN;
use crate::tcp_log::LogReader;
use crate::tcp_log::retransmission::Cause;
use crate::tcp_log::retransmissions;
use crate::tcp_log::testing::log_of;
use arrow::datatypes::Int64Type;
use proptest::prelude::*;
use std::io::Cursor;

const ESTABLISHED: u8 = 1;
const SYN_SENT: u8 = 2;
const TIME_WAIT: u8 = 6;
const NEW_SYN_RECV: u8 = 12;
const IN: u8 = 0;
const OUT: u8 = 1;

/// What the rows of a log of these records say of its flows, in batches of some rows.
fn table_of(records: &[TcpStateRecord], batch_rows: usize) -> RecordBatch {
    let log = log_of(records, batch_rows, records.len());
    let reader = LogReader::new(Cursor::new(log), "made.arrow".into()).unwrap();
    let mut states = FlowStates::default();
    for batch in reader.select_states().unwrap() {
        states.add(&batch.unwrap(), 0);
    }
    assert_eq!(states.records(), records.len() as u64);
    states.table().unwrap()
}

fn number(table: &RecordBatch, name: &str) -> Vec<i64> {
    let column = table.column_by_name(name).unwrap();
    let numbers = arrow::compute::cast(column, &arrow::datatypes::DataType::Int64).unwrap();
    numbers.as_primitive::<Int64Type>().values().to_vec()
}

fn record(state: u8, snd_una: u32, rcv_nxt: u32) -> TcpStateRecord {
    TcpStateRecord {
        flow: 7,
        state,
        snd_una,
        rcv_nxt,
        direction: OUT,
        ..Default::default()
    }
}

#[test]
fn bytes_may_lack_where_sequence_numbers_may_have_gone_round_between_two_rows() {
    let at = |time_ms: u64, acked: u32| TcpStateRecord {
        time_ns: time_ms * 1_000_000,
        ..record(ESTABLISHED, acked, 1)
    };
    // 4 Gbit/s for 10 ms, and as much without a row: 2.15 GB or more in 4.3 s.
    for (pause_ms, may_lack) in [(4_200, 0), (4_400, 1)] {
        let before = (0..=10).map(|time_ms| at(time_ms, 500_000 * time_ms as u32));
        let records: Vec<_> = before.chain([at(10 + pause_ms, 6_000_000)]).collect();
        let table = table_of(&records, 4);
        assert_eq!(number(&table, "acked_bytes"), [6_000_000]);
        assert_eq!(number(&table, "acked_may_lack"), [may_lack]);
        assert_eq!(number(&table, "received_may_lack"), [0]);
    }
}

#[test]
fn bytes_are_those_between_the_numbers_also_when_they_wrap_and_when_rows_change_places() {
    let una = |offset: u32| (u32::MAX - 999).wrapping_add(offset);
    let records = [
        // Before the peer's SYN its number is 0.
        record(SYN_SENT, una(0), 0),
        record(ESTABLISHED, una(1), 500),
        record(ESTABLISHED, una(3001), 500),
        record(ESTABLISHED, una(2001), 400),
        record(ESTABLISHED, una(4001), 600),
        record(TIME_WAIT, 0, 0),
    ];
    for batch_rows in [1, 2, 8] {
        let table = table_of(&records, batch_rows);
        assert_eq!(number(&table, "flow"), [7]);
        assert_eq!(number(&table, "acked_bytes"), [4000]);
        assert_eq!(number(&table, "received_bytes"), [100]);
        assert_eq!(number(&table, "records"), [5]);
    }
}

proptest! {
    /// As a judge of all rows finds them, in batches with events and without, also where the flow table comes late.
    #[test]
    fn segments_are_sent_again_for_what_the_table_of_retransmissions_says(
        rows in prop::collection::vec(
            (0..2u32, 0..8u8, 0..5u8, 0..8u8, 0..6u32, 0..9u32, any::<bool>()),
            2..200,
        ),
        batch_rows in 1..40usize,
        is_late in any::<bool>(),
    ) {
        let records: Vec<_> = rows
            .into_iter()
            .enumerate()
            .map(|(time, (flow, event, ca_state, timer, pkt_seq, sacked_out, reordered))| {
                TcpStateRecord {
                    time_ns: time as u64 * 1_000_000,
                    flow: flow + 1,
                    event: [EVENT_PACKET, EVENT_RETRANSMIT, EVENT_CONGESTION_STATE, EVENT_PACKET]
                        [usize::from(event % 4)],
                    pkt_seq: pkt_seq * 100,
                    payload_bytes: 100,
                    pkt_flags: if event == 5 { TCP_SYN } else { TCP_ACK },
                    gso_segs: 1 + u16::from(event > 3),
                    dupthresh_segments: 3,
                    ca_state,
                    sacked_out,
                    loss_state: if timer == 7 {
                        0
                    } else {
                        LOSS_STATE_KNOWN | timer | if reordered { LOSS_STATE_REORDERED } else { 0 }
                    },
                    ..record(ESTABLISHED, 1000, 1)
                }
            })
            .collect();
        let log = log_of(&records, batch_rows, records.len().div_ceil(2));
        let opened = || LogReader::new(Cursor::new(&log), "made.arrow".into()).unwrap();
        let judged = retransmissions(opened()).unwrap();
        let mut states = FlowStates::default();
        let mut reader = opened();
        reader.survey().unwrap();
        let flows = reader.take_flows();
        if !is_late {
            states.note_flows(flows.values());
        }
        for batch in opened().select_states().unwrap() {
            states.add(&batch.unwrap(), 0);
        }
        states.note_flows(flows.values());
        for flow in flows.keys() {
            let mut expected = [0; CAUSE_NAMES.len() + 1];
            for one in judged.iter().filter(|one| one.flow == *flow) {
                let at = one.cause.map_or(CAUSE_NAMES.len(), |cause| cause as usize);
                expected[at] += u64::from(one.segments);
            }
            let found = states.sent_again.get(flow).map_or([0; 8], |found| found.segments);
            prop_assert_eq!(found, expected);
        }
    }
}

#[test]
fn causes_are_named_the_most_frequent_first() {
    let mut again = SentAgain::default();
    assert_eq!(again.text(), None);
    again.segments[Cause::Rto as usize] = 1;
    again.segments[Cause::Fast as usize] = 12;
    again.segments[CAUSE_NAMES.len()] = 2;
    assert_eq!(again.text().unwrap(), "12 fast, 2 unknown, 1 rto");
}

#[test]
fn what_the_packet_of_the_last_row_acknowledges_and_brings_counts() {
    let last = TcpStateRecord {
        direction: IN,
        pkt_flags: TCP_ACK,
        pkt_ack: 1300,
        pkt_seq: 80,
        payload_bytes: 100,
        ..record(ESTABLISHED, 1000, 100)
    };
    let table = table_of(&[record(ESTABLISHED, 1000, 100), last], 8);
    assert_eq!(number(&table, "acked_bytes"), [300]);
    assert_eq!(number(&table, "received_bytes"), [80]);
    // One without the flag acknowledges nothing, and one that is sent brings nothing.
    let no_ack = TcpStateRecord {
        pkt_flags: 0,
        ..last
    };
    let sent = TcpStateRecord {
        direction: OUT,
        ..last
    };
    let table = table_of(&[record(ESTABLISHED, 1000, 100), no_ack, sent], 8);
    assert_eq!(number(&table, "acked_bytes"), [0]);
    assert_eq!(number(&table, "received_bytes"), [80]);
    // A reset repeats the end of the data that it answers, and no program read these data.
    let reset = TcpStateRecord {
        pkt_flags: TCP_ACK | TCP_RST,
        payload_bytes: 0,
        ..last
    };
    let table = table_of(&[record(ESTABLISHED, 1000, 100), reset], 8);
    assert_eq!(number(&table, "acked_bytes"), [0]);
}

#[test]
fn an_accepted_connection_begins_with_its_syn_and_its_first_segment_counts() {
    let at = |time_ms: u64, state: u8| TcpStateRecord {
        time_ns: time_ms * 1_000_000,
        direction: IN,
        pkt_flags: TCP_ACK,
        ..record(state, 0, 0)
    };
    let handshake = [at(1, NEW_SYN_RECV), at(2, NEW_SYN_RECV)];
    let first = TcpStateRecord {
        snd_una: 1000,
        rcv_nxt: 500,
        pkt_ack: 1000,
        pkt_seq: 500,
        payload_bytes: 20_000,
        ..at(3001, ESTABLISHED)
    };
    let table = table_of(&[handshake[0], handshake[1], first], 8);
    assert_eq!(number(&table, "received_bytes"), [20_000]);
    assert_eq!(number(&table, "acked_bytes"), [0]);
    let times = (number(&table, "begin_ns"), number(&table, "end_ns"));
    assert_eq!(times.1[0] - times.0[0], 3_000_000_000);
    // One that a full queue refused has the same rows as one that waits: they do not tell.
    assert_eq!(table_of(&handshake, 8).num_rows(), 0);
}

/// The kernel counts a segment, sends it, and then says that it did.
#[test]
fn an_event_whose_packet_was_before_the_log_counts() {
    let first = TcpStateRecord {
        total_retrans: 14_200,
        ..record(ESTABLISHED, 1, 1)
    };
    let event = TcpStateRecord {
        event: EVENT_RETRANSMIT,
        gso_segs: 12,
        loss_state: LOSS_STATE_KNOWN,
        ..first
    };
    let last = TcpStateRecord {
        total_retrans: 14_203,
        ..first
    };
    for batch_rows in [1, 3] {
        let table = table_of(&[first, event, last], batch_rows);
        assert_eq!(number(&table, "retransmitted_first"), [14_188]);
        assert_eq!(number(&table, "retransmitted_last"), [14_203]);
    }
}

#[test]
fn a_round_trip_time_stays_until_another_one_is_known() {
    let timed = TcpStateRecord {
        srtt_us_x8: 8 * 250,
        cwnd_segments: 10,
        ..record(ESTABLISHED, 1, 1)
    };
    let later = TcpStateRecord {
        cwnd_segments: 11,
        total_retrans: 3,
        ..record(ESTABLISHED, 1, 1)
    };
    let table = table_of(&[timed, later], 8);
    assert_eq!(number(&table, "srtt_us"), [250]);
    assert_eq!(number(&table, "cwnd_segments"), [11]);
    assert_eq!(number(&table, "retransmitted_first"), [0]);
    assert_eq!(number(&table, "retransmitted_last"), [3]);
    assert!(
        table_of(&[later], 8)
            .column_by_name("srtt_us")
            .unwrap()
            .is_null(0)
    );
}
