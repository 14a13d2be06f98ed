//! Clocks that go evenly, jump, are corrected, and are confirmed.

use super::*;

const HOUR: i64 = 3_600 * SECOND;
const DAY: i64 = 24 * HOUR;
const YEAR: i64 = 365 * DAY;
/// A moment of a clock that is right.
const NOW: Time = Time(50 * YEAR);

fn at(nanoseconds: i64) -> Time {
    Time(NOW.0 + nanoseconds)
}

/// Returns the lived time of a store that was opened at `NOW`.
fn opened() -> LivedTime {
    let mut lived = LivedTime::default();
    assert!(!lived.start(NOW, 0));
    lived
}

/// Returns the age of a record with this time when the wall clock shows `wall`.
fn age(lived: &LivedTime, time: Time, wall: Time) -> i64 {
    wall.0 - lived.place(time).0
}

#[test]
fn a_clock_that_never_jumps_changes_nothing() {
    let mut lived = LivedTime::default();
    assert_eq!(lived.place(at(5)), at(5));
    lived.start(NOW, 0);
    for hour in 1..100 {
        assert!(!lived.observe(at(hour * HOUR), hour * HOUR + SECOND * (hour % 7)));
        assert!(!lived.start(at(hour * HOUR + 1), hour * HOUR), "another process");
    }
    for time in [Time(0), at(-YEAR), at(0), at(DAY), at(YEAR)] {
        assert_eq!(lived.place(time), time);
    }
    assert_eq!(lived.jump(), None);
}

#[test]
fn a_jump_forward_while_running_counts_only_the_time_that_passed() {
    for jump in [2 * DAY, 10 * YEAR] {
        let mut lived = opened();
        lived.observe(at(HOUR), HOUR);
        assert!(lived.observe(at(HOUR + jump + 30 * SECOND), HOUR + 30 * SECOND));
        let wall = at(HOUR + jump + 30 * SECOND);
        assert_eq!(age(&lived, at(HOUR), wall), 30 * SECOND);
        assert_eq!(age(&lived, at(-DAY), wall), DAY + HOUR + 30 * SECOND);
        let told = lived.jump().expect("it is told");
        assert_eq!((told.by, told.while_running), (jump, true));
        // A start a day later by that clock does not confirm it: the monotonic clock knew better.
        lived.start(Time(wall.0 + 2 * HOUR), 0);
        lived.start(Time(wall.0 + DAY + HOUR), 0);
        assert_eq!(age(&lived, at(HOUR), Time(wall.0 + DAY + HOUR)), 30 * SECOND + DAY + HOUR);
        lived.confirm();
        assert_eq!(lived.place(at(HOUR)), at(HOUR), "a person said that the clock is right");
        assert_eq!(lived.jump(), None);
    }
}

#[test]
fn a_clock_that_jumps_and_is_corrected_leaves_ages_right() {
    let mut lived = opened();
    lived.observe(at(10 * YEAR + HOUR), HOUR);
    let wrong = at(10 * YEAR + 2 * HOUR);
    lived.observe(wrong, 2 * HOUR);
    assert!(lived.observe(at(3 * HOUR), 3 * HOUR), "corrected");
    let wall = at(4 * HOUR);
    lived.observe(wall, 4 * HOUR);
    assert_eq!(age(&lived, NOW, wall), 4 * HOUR);
    assert_eq!(age(&lived, wrong, wall), 2 * HOUR, "what was made under the wrong clock");
    assert_eq!(age(&lived, at(3 * HOUR + 1), wall), HOUR - 1);
    assert_eq!(lived.jump().map(|jump| jump.missing), Some(0), "the wrong clock has nothing to confirm");
}

#[test]
fn a_clock_that_was_behind_and_is_corrected_ages_nothing() {
    let mut lived = LivedTime::default();
    lived.start(at(-10 * YEAR), 0);
    lived.observe(at(-10 * YEAR + HOUR), HOUR);
    assert!(lived.observe(at(0), HOUR + 10 * SECOND));
    assert_eq!(age(&lived, at(-10 * YEAR + HOUR), at(0)), 10 * SECOND);
    // A snapshot that another process made meanwhile is not in the future, and not older than the correction.
    assert!(lived.place(at(-YEAR)) <= at(0));
    assert!(lived.place(at(-YEAR)) >= lived.place(at(-10 * YEAR + HOUR)));
}

#[test]
fn a_gap_between_starts_counts_for_a_day_until_a_start_a_day_later() {
    let mut lived = opened();
    let first = at(30 * DAY);
    assert!(lived.start(first, 0));
    assert_eq!(age(&lived, NOW, first), DAY);
    assert_eq!(lived.jump().map(|jump| (jump.by, jump.missing)), Some((30 * DAY, 29 * DAY)));
    lived.observe(Time(first.0 + HOUR), HOUR);
    lived.start(Time(first.0 + 2 * HOUR), 0);
    assert_eq!(age(&lived, NOW, Time(first.0 + 2 * HOUR)), DAY + 2 * HOUR, "too early to confirm anything");
    lived.start(Time(first.0 + DAY), 0);
    assert_eq!(age(&lived, NOW, Time(first.0 + DAY)), 31 * DAY);
    assert_eq!(lived.jump(), None);
    assert_eq!(lived, {
        let mut whole = LivedTime::since(Some(NOW), NOW);
        whole.stretches[0].end = Time(first.0 + DAY);
        whole.anchor = lived.anchor;
        whole
    });
}

#[test]
fn a_gap_of_a_wrong_clock_is_never_counted_after_it_was_corrected() {
    let mut lived = opened();
    lived.start(at(10 * YEAR), 0);
    assert_eq!(age(&lived, NOW, at(10 * YEAR)), DAY);
    assert!(lived.start(at(HOUR), 0));
    assert_eq!(lived.jump().map(|jump| jump.missing), Some(0));
    lived.start(at(2 * DAY), 0);
    let old = age(&lived, NOW, at(2 * DAY));
    assert!(old <= 3 * DAY + HOUR, "{}", old / HOUR);
}

#[test]
fn a_person_confirms_a_gap() {
    let mut lived = opened();
    lived.start(at(30 * DAY), 0);
    lived.confirm();
    assert_eq!((lived.place(NOW), lived.jump()), (NOW, None));
}

#[test]
fn small_steps_are_noticed_when_they_add_up() {
    let mut lived = opened();
    let jumped = (1..=100).filter(|n| lived.observe(at(n * 50 * SECOND), n * 10 * SECOND)).count();
    assert!(jumped >= 30, "{jumped}");
    let wall = at(100 * 50 * SECOND);
    let old = age(&lived, NOW, wall);
    assert!((1_000 * SECOND..1_100 * SECOND).contains(&old), "{}", old / SECOND);
}

#[test]
fn the_number_of_stretches_is_bounded_and_none_makes_records_older() {
    let mut lived = opened();
    for n in 1..1_000 {
        lived.observe(at(n * DAY), n * SECOND);
    }
    assert!(lived.stretches.len() <= STRETCHES_MAX);
    let wall = at(999 * DAY);
    for n in 0..1_000 {
        assert!(age(&lived, at(n * DAY), wall) <= (1_000 - n) * SECOND, "{n}");
    }
}

#[test]
fn bytes_are_read_back_and_damage_is_seen() {
    let mut lived = opened();
    lived.start(at(30 * DAY), 0);
    lived.observe(at(DAY), HOUR);
    let bytes = lived.encode();
    let read = LivedTime::decode(&bytes).expect("whole");
    assert_eq!((read.stretches.clone(), read.jump()), (lived.stretches.clone(), lived.jump()));
    for place in 0..bytes.len() * 8 {
        let mut damaged = bytes.clone();
        damaged[place / 8] ^= 1 << (place % 8);
        assert_eq!(LivedTime::decode(&damaged), None, "bit {place}");
    }
    assert_eq!(LivedTime::decode(b""), None);
}

#[test]
fn a_store_without_a_record_of_its_clock_begins_with_its_newest_operation() {
    let mut lived = LivedTime::since(Some(NOW), at(10 * YEAR));
    lived.start(at(10 * YEAR), 0);
    assert_eq!(age(&lived, at(-HOUR), at(10 * YEAR)), DAY + HOUR);
    let mut ahead = LivedTime::since(Some(at(10 * YEAR)), NOW);
    ahead.start(NOW, 0);
    assert_eq!(age(&ahead, at(-HOUR), NOW), HOUR, "one of the future says nothing");
}
