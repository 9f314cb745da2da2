//! Each cause and each verdict, from rows as the kernel writes them.

use super::{CA_LOSS, CA_RECOVERY, Cause, Evidence, FlowFacts, Judge, Retransmission, Row};
use crate::abi::{EVENT_CONGESTION_STATE, EVENT_DSACK, EVENT_PACKET, EVENT_RETRANSMIT};

const SACK: FlowFacts = FlowFacts {
    sack: true,
    is_inbound_logged: true,
};
const MS: i64 = 1_000_000;

/// A row of an established connection: the retransmission timer runs, three duplicates count.
fn row(event: u8, ca_state: u8, time_ms: i64) -> Row {
    Row {
        time_ns: time_ms * MS,
        flow: 1,
        event,
        ca_state,
        min_rtt_us: Some(10_000),
        gso_segs: 1,
        timer: Some(1),
        dupthresh_segments: Some(3),
        reordering_seen: Some(false),
        can_undo: Some(true),
        snd_una: 1000,
        ..Row::default()
    }
}

fn sent(ca_state: u8, time_ms: i64, pkt_seq: u32) -> Row {
    Row {
        pkt_seq,
        payload_bytes: 100,
        pkt_flags: 16,
        ..row(EVENT_RETRANSMIT, ca_state, time_ms)
    }
}

fn dsack(time_ms: i64, pkt_seq: u32) -> Row {
    Row {
        pkt_seq,
        payload_bytes: 100,
        ..row(EVENT_DSACK, 0, time_ms)
    }
}

fn acknowledged(time_ms: i64, snd_una: u32) -> Row {
    Row {
        snd_una,
        timer: None,
        ..row(EVENT_PACKET, 0, time_ms)
    }
}

fn judge(facts: FlowFacts, rows: &[Row]) -> Vec<Retransmission> {
    let mut judge = Judge::new(|_| facts);
    rows.iter().for_each(|row| judge.see(row));
    judge.finish()
}

fn causes(facts: FlowFacts, rows: &[Row]) -> Vec<Option<Cause>> {
    judge(facts, rows).iter().map(|one| one.cause).collect()
}

#[test]
fn a_probe_is_sent_by_the_loss_probe_timer_outside_of_recovery() {
    let probe = Row {
        timer: Some(3),
        ..sent(0, 1, 1000)
    };
    assert_eq!(causes(SACK, &[probe]), [Some(Cause::Tlp)]);
    assert_eq!(causes(SACK, &[sent(0, 1, 1000)]), [None]);
}

#[test]
fn a_timeout_causes_its_segment_and_those_of_the_recovery_after_it() {
    let entry = Row {
        timer: Some(0),
        ..row(EVENT_CONGESTION_STATE, 4, 1)
    };
    let first = Row {
        timer: Some(0),
        ..sent(4, 1, 1000)
    };
    let rto = Some(Cause::Rto);
    assert_eq!(causes(SACK, &[entry, first, sent(4, 2, 1100)]), [rto, rto]);
    // How the state began is missing.
    assert_eq!(causes(SACK, &[first, sent(4, 2, 1100)]), [rto, rto]);
    assert_eq!(causes(SACK, &[sent(4, 2, 1100)]), [None]);
}

#[test]
fn a_smaller_mtu_is_no_timeout() {
    let rows = [row(EVENT_CONGESTION_STATE, 4, 1), sent(4, 1, 1000)];
    assert_eq!(causes(SACK, &rows), [Some(Cause::Mtu)]);
}

#[test]
fn the_duplicate_threshold_tells_fast_from_rack() {
    let at = |sacked_out, reordering_seen| {
        let entry = Row {
            sacked_out,
            reordering_seen: Some(reordering_seen),
            ..row(EVENT_CONGESTION_STATE, 3, 1)
        };
        [entry, sent(3, 1, 1000)]
    };
    assert_eq!(causes(SACK, &at(3, false)), [Some(Cause::Fast)]);
    assert_eq!(causes(SACK, &at(2, false)), [Some(Cause::Rack)]);
    assert_eq!(causes(SACK, &at(3, true)), [Some(Cause::Rack)]);
    assert_eq!(
        causes(FlowFacts::default(), &at(2, false)),
        [Some(Cause::Fast)]
    );
}

#[test]
fn a_threshold_that_does_not_count_is_never_reached() {
    let entry = Row {
        sacked_out: 300,
        dupthresh_segments: Some(254),
        ..row(EVENT_CONGESTION_STATE, 3, 1)
    };
    assert_eq!(
        causes(SACK, &[entry, sent(3, 1, 1000)]),
        [Some(Cause::Rack)]
    );
}

#[test]
fn a_lost_retransmission_is_found_by_time() {
    let entry = Row {
        sacked_out: 3,
        ..row(EVENT_CONGESTION_STATE, 3, 1)
    };
    let rows = [entry, sent(3, 1, 1000), sent(3, 2, 1100), sent(3, 20, 1000)];
    let fast = Some(Cause::Fast);
    assert_eq!(causes(SACK, &rows), [fast, fast, Some(Cause::Rack)]);
}

#[test]
fn handshakes_are_known_by_their_flags() {
    let syn = Row {
        pkt_flags: 2,
        timer: None,
        ..sent(4, 1, 1)
    };
    let synack = Row {
        pkt_flags: 18,
        ..syn
    };
    let found = judge(SACK, &[syn, synack, acknowledged(9, 5000)]);
    let causes: Vec<_> = found.iter().map(|one| one.cause).collect();
    assert_eq!(causes, [Some(Cause::Syn), Some(Cause::SynAck)]);
    assert!(found.iter().all(|one| one.spurious.is_none()));
}

#[test]
fn a_log_without_the_loss_state_shows_no_cause() {
    let old = Row {
        timer: None,
        dupthresh_segments: None,
        ..sent(3, 1, 1000)
    };
    assert_eq!(causes(SACK, &[old]), [None]);
}

#[test]
fn a_dsack_names_the_spurious_one() {
    let rows = [
        sent(4, 1, 1000),
        sent(4, 2, 1100),
        dsack(30, 1100),
        acknowledged(31, 1200),
    ];
    let found = judge(SACK, &rows);
    assert_eq!(found[0].spurious, Some(false));
    assert_eq!(found[1].spurious, Some(true));
    assert_eq!(found[1].evidence, Some(Evidence::Dsack));
}

#[test]
fn a_dsack_is_not_younger_than_a_round_trip() {
    // The second one was sent 2 ms before the report, and the round trip takes 10 ms.
    let rows = [sent(4, 1, 1000), sent(4, 28, 1000), dsack(30, 1000)];
    let spurious =
        |rows: &[Row]| -> Vec<_> { judge(SACK, rows).iter().map(|one| one.spurious).collect() };
    assert_eq!(spurious(&rows), [Some(true), None]);
    let rows = [sent(4, 1, 1000), sent(4, 15, 1000), dsack(30, 1000)];
    assert_eq!(spurious(&rows), [None, Some(true)]);
    let rows = [rows[0], rows[1], rows[2], dsack(31, 1000)];
    assert_eq!(spurious(&rows), [Some(true), Some(true)]);
}

/// A probe came through, and its bytes once more in pieces, when the path had become narrower.
#[test]
fn pieces_are_spurious_and_not_the_whole_that_came_before_them() {
    let whole = Row {
        payload_bytes: 300,
        ..sent(0, 5, 1000)
    };
    let ends_at = |seq| Row {
        payload_bytes: 200,
        ..dsack(60, seq)
    };
    let verdicts = |reports: &[Row]| {
        let mut rows = vec![
            whole,
            sent(4, 20, 1000),
            sent(4, 20, 1100),
            sent(4, 20, 1200),
        ];
        rows.extend(reports);
        rows.push(acknowledged(61, 1300));
        let found = judge(SACK, &rows);
        found
            .iter()
            .map(|one| one.spurious.unwrap())
            .collect::<Vec<_>>()
    };
    let one_by_one = [dsack(60, 1000), dsack(60, 1100), dsack(60, 1200)];
    assert_eq!(verdicts(&one_by_one), [false, true, true, true]);
    assert_eq!(
        verdicts(&[one_by_one[2], one_by_one[0]]),
        [false, true, false, true]
    );
    assert_eq!(
        verdicts(&[ends_at(1000), one_by_one[2]]),
        [false, true, true, true]
    );
    // The same bytes came three times.
    assert_eq!(
        verdicts(&[one_by_one[1], one_by_one[1]]),
        [true, false, true, false]
    );
    assert_eq!(verdicts(&[]), [false; 4]);
}

/// All round trips so far were late, so a report comes back in less than their minimum.
#[test]
fn a_young_piece_with_the_ends_of_the_report_is_meant_and_not_the_whole() {
    let whole = |segments| Row {
        payload_bytes: 300,
        gso_segs: segments,
        ..sent(0, 5, 1000)
    };
    let spurious = |whole, reported: Row| {
        let rows = [
            whole,
            sent(4, 22, 1000),
            sent(4, 22, 1100),
            reported,
            acknowledged(31, 1300),
        ];
        let found = judge(SACK, &rows);
        [0, 1, 2].map(|at| found[at].spurious.unwrap())
    };
    assert_eq!(spurious(whole(1), dsack(31, 1100)), [false, false, true]);
    // One packet of several has ends of its own.
    assert_eq!(spurious(whole(3), dsack(31, 1100)), [true, false, false]);
    let reported = Row {
        payload_bytes: 300,
        ..dsack(31, 1000)
    };
    assert_eq!(spurious(whole(1), reported), [true, false, false]);
}

#[test]
fn a_restored_window_shows_that_the_recovery_was_spurious() {
    let entry = row(EVENT_CONGESTION_STATE, 4, 1);
    let left = |can_undo| Row {
        can_undo: Some(can_undo),
        original_acked: Some(true),
        snd_una: 1100,
        ..row(EVENT_CONGESTION_STATE, 0, 40)
    };
    let spurious = |last| {
        judge(
            SACK,
            &[entry, sent(4, 1, 1000), last, acknowledged(41, 2000)],
        )
    };
    assert_eq!(spurious(left(false))[0].evidence, Some(Evidence::Undo));
    assert_eq!(spurious(left(true))[0].spurious, Some(false));
    // Entered from CWR: there was nothing to restore from the start.
    let first = Row {
        can_undo: Some(false),
        ..sent(4, 1, 1000)
    };
    let found = judge(SACK, &[entry, first, left(false)]);
    assert_eq!(found[0].spurious, Some(false));
}

#[test]
fn a_restored_window_shows_it_of_segments_whose_original_was_acknowledged() {
    let evidence = |ca_state, original_acked| -> Vec<_> {
        let restored = Row {
            can_undo: Some(false),
            original_acked: Some(original_acked),
            snd_una: 1100,
            ..row(EVENT_CONGESTION_STATE, 0, 40)
        };
        let rows = [
            row(EVENT_CONGESTION_STATE, ca_state, 1),
            sent(ca_state, 1, 1000),
            sent(ca_state, 2, 1200),
            restored,
        ];
        judge(SACK, &rows).iter().map(|one| one.evidence).collect()
    };
    let undo = Some(Evidence::Undo);
    assert_eq!(evidence(CA_LOSS, true), [undo, None]);
    // F-RTO.
    assert_eq!(evidence(CA_LOSS, false), [None, None]);
    assert_eq!(evidence(CA_RECOVERY, false), [undo, None]);
}

#[test]
fn without_reports_of_the_peer_nothing_is_needed_for_certain() {
    let rows = [sent(4, 1, 1000), acknowledged(41, 2000)];
    let outbound_only = FlowFacts {
        is_inbound_logged: false,
        ..SACK
    };
    assert_eq!(judge(SACK, &rows)[0].spurious, Some(false));
    assert_eq!(judge(outbound_only, &rows)[0].spurious, None);
    assert_eq!(judge(FlowFacts::default(), &rows)[0].spurious, None);
    assert_eq!(judge(SACK, &rows[..1])[0].spurious, None);
}

#[test]
fn sequence_numbers_wrap() {
    let first = Row {
        snd_una: u32::MAX - 49,
        ..sent(4, 1, u32::MAX - 49)
    };
    let report = Row {
        snd_una: u32::MAX - 49,
        ..dsack(30, u32::MAX - 49)
    };
    let found = judge(SACK, &[first, report, acknowledged(31, 50)]);
    assert_eq!(found[0].evidence, Some(Evidence::Dsack));
}
