//! Linearizability: whether what threads saw of some registers can be explained by one order of their calls, in which every
//! call takes its effect between its invocation and its response.
//!
//! Two checkers. [`check_register`] knows nothing but the history of one register and searches for an order, as Wing and
//! Gong did. [`check_log`] is given the order of the writes (an operation log says it), and finds places for everything else;
//! so it can check transactions over many registers.

use std::collections::{BTreeMap, HashSet};
use std::sync::Barrier;
use std::sync::atomic::{AtomicU64, Ordering};

use amalgam_engine::Error;
use amalgam_engine::backend::{Backend, Durability, Transaction};
use amalgam_engine::reference::{OperationDraft, RefValue};

use crate::harness::{Random, name};

/// The content of a register; nothing when there is none.
pub type Value = Option<u64>;

/// When a call was made and when it returned, by a clock that all threads share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// Before the call.
    pub invoked: u64,
    /// After it.
    pub returned: u64,
}

/// What happened to one register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// It was seen to hold this.
    Saw(Value),
    /// It was changed from one value to another.
    Moved(Value, Value),
}

/// One call, as far as it concerns one register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    /// When.
    pub span: Span,
    /// What.
    pub effect: Effect,
}

/// A call that concerns any registers, by name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Call {
    /// When.
    pub span: Span,
    /// What it saw and changed.
    pub effects: BTreeMap<String, Effect>,
    /// Its place among the writes, where it is one.
    pub sequence: Option<u64>,
}

/// Searches for an order of the steps that explains them all, from an empty register on.
pub fn check_register(steps: &[Step]) -> Result<(), String> {
    let mut steps = steps.to_vec();
    steps.sort_by_key(|step| step.span.invoked);
    let mut search = Search { taken: vec![0; steps.len().div_ceil(64)], steps: &steps, first: 0, value: None };
    let mut seen = HashSet::new();
    let mut path = vec![Frame { candidates: search.candidates(), taken: None }];
    let mut deepest = 0;
    while let Some(frame) = path.last_mut() {
        if search.first == steps.len() {
            return Ok(());
        }
        let Some(next) = frame.candidates.pop() else {
            let frame = path.pop().expect("it was just looked at");
            frame.taken.iter().for_each(|taken| search.take_back(taken));
            continue;
        };
        let taken = search.take(next);
        if seen.insert((search.taken.clone(), search.value)) {
            deepest = deepest.max(path.len());
            path.push(Frame { candidates: search.candidates(), taken: Some(taken) });
        } else {
            search.take_back(&taken);
        }
    }
    Err(format!("no order explains more than {deepest} of {} steps", steps.len()))
}

/// A place in the search: what is left to try there, and the step that led to it.
struct Frame {
    candidates: Vec<usize>,
    taken: Option<Taken>,
}

/// A step that was taken, and what the search was before.
struct Taken {
    step: usize,
    value: Value,
    first: usize,
}

struct Search<'a> {
    steps: &'a [Step],
    taken: Vec<u64>,
    /// Every step before this one is taken.
    first: usize,
    value: Value,
}

impl Search<'_> {
    fn is_taken(&self, step: usize) -> bool {
        self.taken[step / 64] & (1 << (step % 64)) != 0
    }

    /// The steps that may come next: none that is left returned before they were invoked, and the register fits.
    fn candidates(&self) -> Vec<usize> {
        let mut earliest_return = u64::MAX;
        let mut candidates = Vec::new();
        for (at, step) in self.steps.iter().enumerate().skip(self.first) {
            if step.span.invoked > earliest_return {
                break;
            }
            if self.is_taken(at) {
                continue;
            }
            earliest_return = earliest_return.min(step.span.returned);
            let (Effect::Saw(needed) | Effect::Moved(needed, _)) = step.effect;
            if needed == self.value {
                candidates.push(at);
            }
        }
        candidates.retain(|at| self.steps[*at].span.invoked <= earliest_return);
        // Reading first never hurts, and the search takes from the end.
        candidates.sort_by_key(|at| matches!(self.steps[*at].effect, Effect::Saw(_)));
        candidates
    }

    fn take(&mut self, step: usize) -> Taken {
        let taken = Taken { step, value: self.value, first: self.first };
        self.taken[step / 64] |= 1 << (step % 64);
        if let Effect::Moved(_, after) = self.steps[step].effect {
            self.value = after;
        }
        while self.first < self.steps.len() && self.is_taken(self.first) {
            self.first += 1;
        }
        taken
    }

    fn take_back(&mut self, taken: &Taken) {
        self.taken[taken.step / 64] &= !(1 << (taken.step % 64));
        (self.value, self.first) = (taken.value, taken.first);
    }
}

/// Checks that the sequence numbers of the writes are an order that explains all calls.
pub fn check_log(calls: &[Call]) -> Result<(), String> {
    let mut writes: Vec<&Call> = calls.iter().filter(|call| call.sequence.is_some()).collect();
    writes.sort_by_key(|call| call.sequence);
    let states = replay(&writes)?;
    // Each call comes as early as those that returned before it allow: that leaves the most room to those after it.
    let mut sorted: Vec<&Call> = calls.iter().collect();
    sorted.sort_by_key(|call| call.span.invoked);
    let mut placed: Vec<(u64, u64)> = Vec::new();
    for call in sorted {
        let lowest = placed.iter().filter(|(returned, _)| *returned < call.span.invoked).map(|(_, place)| *place).max();
        let lowest = lowest.unwrap_or(0);
        let place = match call.sequence {
            Some(sequence) if sequence > lowest => sequence,
            Some(sequence) => {
                return Err(format!("write {sequence} was invoked after {lowest} had been seen: {call:?}"));
            }
            None => {
                let fits = |state: &BTreeMap<String, u64>| {
                    call.effects.iter().all(|(name, effect)| *effect == Effect::Saw(state.get(name).copied()))
                };
                let from = usize::try_from(lowest).expect("a log in memory");
                let found = states.iter().enumerate().skip(from).find(|(_, state)| fits(state));
                let (place, _) = found.ok_or_else(|| format!("nothing from {lowest} on looks like {call:?}"))?;
                place as u64
            }
        };
        placed.push((call.span.returned, place));
    }
    Ok(())
}

/// The state after each number of writes. Each write must find what it says it found.
fn replay(writes: &[&Call]) -> Result<Vec<BTreeMap<String, u64>>, String> {
    let mut states = vec![BTreeMap::new()];
    for (at, call) in writes.iter().enumerate() {
        if call.sequence != Some(at as u64 + 1) {
            return Err(format!("the log has {:?} in place {}", call.sequence, at + 1));
        }
        let mut state = states[at].clone();
        for (name, effect) in &call.effects {
            let (Effect::Saw(needed) | Effect::Moved(needed, _)) = *effect;
            if state.get(name).copied() != needed {
                return Err(format!("write {} expects {needed:?} in {name}, the log {:?}", at + 1, state.get(name)));
            }
            match effect {
                Effect::Moved(_, Some(after)) => drop(state.insert(name.clone(), *after)),
                Effect::Moved(_, None) => drop(state.remove(name)),
                Effect::Saw(_) => {}
            }
        }
        states.push(state);
    }
    Ok(states)
}

/// The histories of single registers that some calls contain.
pub fn by_register(calls: &[Call]) -> BTreeMap<String, Vec<Step>> {
    let mut registers: BTreeMap<String, Vec<Step>> = BTreeMap::new();
    for call in calls {
        for (name, effect) in &call.effects {
            registers.entry(name.clone()).or_default().push(Step { span: call.span, effect: *effect });
        }
    }
    registers
}

/// How a history is made.
#[derive(Clone, Copy, Debug)]
pub struct HistoryOptions {
    /// The random numbers.
    pub seed: u64,
    /// How many threads call.
    pub threads: u64,
    /// How often each.
    pub calls: u64,
    /// How many references there are.
    pub registers: u64,
}

/// Reads and compare-and-swaps of many threads on few references, as each of them saw it.
pub fn record(backend: &dyn Backend, options: HistoryOptions) -> Vec<Call> {
    let clock = AtomicU64::new(1);
    let values = AtomicU64::new(1);
    let start = Barrier::new(usize::try_from(options.threads).expect("few threads"));
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..options.threads)
            .map(|thread| {
                let caller = Caller {
                    backend,
                    clock: &clock,
                    values: &values,
                    random: Random::of(&[options.seed, thread]),
                    registers: options.registers,
                    known: BTreeMap::new(),
                };
                let start = &start;
                scope.spawn(move || caller.run(options.calls, start))
            })
            .collect();
        threads.into_iter().flat_map(|thread| thread.join().expect("a caller does not panic")).collect()
    })
}

struct Caller<'a> {
    backend: &'a dyn Backend,
    clock: &'a AtomicU64,
    values: &'a AtomicU64,
    random: Random,
    registers: u64,
    /// What this thread last saw.
    known: BTreeMap<String, Value>,
}

fn to_note(value: Value) -> Option<RefValue> {
    value.map(|value| RefValue::noting(value.to_be_bytes().to_vec()))
}

fn from_note(value: Option<&RefValue>) -> Value {
    value.map(|value| u64::from_be_bytes(value.note[..].try_into().expect("a value has eight bytes")))
}

impl Caller<'_> {
    /// The time before a call. Others get a chance to come between it and the call.
    fn before(&self) -> u64 {
        let now = self.clock.fetch_add(1, Ordering::SeqCst);
        std::thread::yield_now();
        now
    }

    fn since(&self, invoked: u64) -> Span {
        std::thread::yield_now();
        Span { invoked, returned: self.clock.fetch_add(1, Ordering::SeqCst) }
    }

    fn run(mut self, calls: u64, start: &Barrier) -> Vec<Call> {
        start.wait();
        (0..calls).map(|_| if self.random.one_in(3) { self.read() } else { self.swap() }).collect()
    }

    fn register(&mut self) -> String {
        format!("register/{}", self.random.below(self.registers))
    }

    fn read(&mut self) -> Call {
        let register = self.register();
        let invoked = self.before();
        let found = self.backend.read_ref(&name(&register)).expect("a reference can be read");
        let span = self.since(invoked);
        let value = from_note(found.as_ref());
        self.known.insert(register.clone(), value);
        Call { span, effects: [(register, Effect::Saw(value))].into(), sequence: None }
    }

    /// Moves one to three references from what this thread believes they hold; some are compared only.
    fn swap(&mut self) -> Call {
        let mut effects = BTreeMap::new();
        for at in 0..1 + self.random.below(3) {
            let register = self.register();
            let before = self.known.get(&register).copied().flatten();
            let after = (!self.random.one_in(8)).then(|| self.values.fetch_add(1, Ordering::SeqCst));
            let guard = at > 0 && self.random.one_in(3);
            effects.insert(register, if guard { Effect::Saw(before) } else { Effect::Moved(before, after) });
        }
        let expect = effects.iter().map(|(register, effect)| {
            let (Effect::Saw(before) | Effect::Moved(before, _)) = effect;
            (name(register), to_note(*before))
        });
        let set = effects.iter().filter_map(|(register, effect)| match effect {
            Effect::Moved(_, after) => Some((name(register), to_note(*after))),
            Effect::Saw(_) => None,
        });
        let transaction = Transaction {
            expect: expect.collect(),
            set: set.collect(),
            operation: Some(OperationDraft::default()),
            durability: if self.random.one_in(8) { Durability::Durable } else { Durability::Buffered },
            ..Transaction::default()
        };
        let invoked = self.before();
        let result = self.backend.transact(transaction);
        let span = self.since(invoked);
        match result {
            Ok(committed) => {
                for (register, effect) in &effects {
                    let (Effect::Saw(now) | Effect::Moved(_, now)) = *effect;
                    self.known.insert(register.clone(), now);
                }
                let sequence = committed.operation.expect("it has a record").sequence;
                Call { span, effects, sequence: Some(sequence) }
            }
            Err(Error::Stale { moved }) => {
                // Those that did not move were seen as they were expected.
                for effect in effects.values_mut() {
                    let (Effect::Saw(before) | Effect::Moved(before, _)) = *effect;
                    *effect = Effect::Saw(before);
                }
                for (register, value) in &moved {
                    effects.insert(register.as_str().to_owned(), Effect::Saw(from_note(value.as_ref())));
                }
                for (register, effect) in &effects {
                    let (Effect::Saw(now) | Effect::Moved(_, now)) = *effect;
                    self.known.insert(register.clone(), now);
                }
                Call { span, effects, sequence: None }
            }
            Err(error) => panic!("a transaction failed: {error}"),
        }
    }
}

/// What a history holds, for the figures.
#[derive(Clone, Copy, Debug, Default)]
pub struct Figures {
    /// All calls.
    pub calls: u64,
    /// Transactions that happened.
    pub done: u64,
    /// Of these, those over several references.
    pub done_over_many: u64,
    /// Pairs of calls that overlapped, counting for each call the one before it.
    pub overlaps: u64,
}

/// Checks a history both ways. Panics with the seed's options when no order explains it, or when nothing met.
pub fn check_history(calls: &[Call], options: HistoryOptions) -> Figures {
    if let Err(why) = check_log(calls) {
        panic!("{options:?}: the operation log does not explain what was seen: {why}");
    }
    for (register, steps) in by_register(calls) {
        if let Err(why) = check_register(&steps) {
            panic!("{options:?}: {register}: {why}");
        }
    }
    let done = |call: &&Call| call.sequence.is_some();
    let mut sorted: Vec<_> = calls.iter().collect();
    sorted.sort_by_key(|call| call.span.invoked);
    let figures = Figures {
        calls: calls.len() as u64,
        done: calls.iter().filter(done).count() as u64,
        done_over_many: calls.iter().filter(done).filter(|call| call.effects.len() > 1).count() as u64,
        overlaps: sorted.windows(2).filter(|pair| pair[1].span.invoked < pair[0].span.returned).count() as u64,
    };
    assert!(figures.overlaps > 20, "the threads ran one after the other: {figures:?}");
    assert!(figures.done > 20 && figures.done_over_many > 5, "hardly anything was swapped: {figures:?}");
    assert!(figures.done < figures.calls, "nothing was read or refused: {figures:?}");
    figures
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step(invoked: u64, returned: u64, effect: Effect) -> Step {
        Step { span: Span { invoked, returned }, effect }
    }

    fn call(invoked: u64, returned: u64, sequence: Option<u64>, effects: &[(&str, Effect)]) -> Call {
        let effects = effects.iter().map(|(name, effect)| ((*name).to_owned(), *effect)).collect();
        Call { span: Span { invoked, returned }, effects, sequence }
    }

    use Effect::{Moved, Saw};

    #[test]
    fn good_registers_pass() {
        assert_eq!(check_register(&[]), Ok(()));
        let overlapping = [
            step(1, 10, Moved(None, Some(1))),
            step(2, 9, Moved(Some(1), Some(2))),
            step(3, 4, Saw(None)),
            step(5, 8, Saw(Some(2))),
            step(11, 12, Saw(Some(2))),
        ];
        assert_eq!(check_register(&overlapping), Ok(()));
        // The only order is neither that of invocations nor that of returns.
        let inverted = [
            step(1, 20, Moved(Some(2), Some(3))),
            step(2, 19, Moved(Some(1), Some(2))),
            step(3, 18, Moved(None, Some(1))),
        ];
        assert_eq!(check_register(&inverted), Ok(()));
    }

    #[test]
    fn bad_registers_are_found() {
        for (what, steps) in [
            ("a value from nowhere", vec![step(1, 2, Saw(Some(9)))]),
            (
                "a read of what was overwritten",
                vec![step(1, 2, Moved(None, Some(1))), step(3, 4, Moved(Some(1), Some(2))), step(5, 6, Saw(Some(1)))],
            ),
            (
                "two swaps from one value",
                vec![
                    step(1, 2, Moved(None, Some(1))),
                    step(3, 10, Moved(Some(1), Some(2))),
                    step(4, 9, Moved(Some(1), Some(3))),
                ],
            ),
            (
                "a value seen, then not",
                vec![step(1, 10, Moved(None, Some(1))), step(2, 3, Saw(Some(1))), step(4, 5, Saw(None))],
            ),
            ("a read of the future", vec![step(1, 2, Saw(Some(1))), step(3, 4, Moved(None, Some(1)))]),
        ] {
            assert!(check_register(&steps).is_err(), "{what} was believed");
        }
    }

    #[test]
    fn good_logs_pass() {
        let calls = [
            call(1, 10, Some(1), &[("a", Moved(None, Some(1))), ("b", Moved(None, Some(2)))]),
            call(2, 3, None, &[("a", Saw(None))]),
            call(4, 5, None, &[("b", Saw(Some(2)))]),
            call(6, 7, None, &[("a", Saw(Some(1)))]),
            call(11, 12, Some(2), &[("a", Saw(Some(1))), ("b", Moved(Some(2), None))]),
            call(13, 14, None, &[("a", Saw(Some(1))), ("b", Saw(None))]),
        ];
        assert_eq!(check_log(&calls), Ok(()));
    }

    #[test]
    fn bad_logs_are_found() {
        let both = call(1, 10, Some(1), &[("a", Moved(None, Some(1))), ("b", Moved(None, Some(2)))]);
        for (what, calls) in [
            (
                "half of a transaction",
                vec![both.clone(), call(2, 3, None, &[("a", Saw(Some(1)))]), call(4, 5, None, &[("b", Saw(None))])],
            ),
            (
                "a refusal that mixes two moments",
                vec![both.clone(), call(2, 3, None, &[("a", Saw(Some(1))), ("b", Saw(None))])],
            ),
            ("a stale read", vec![both.clone(), call(11, 12, None, &[("a", Saw(None))])]),
            (
                "a write logged before one that was done",
                vec![
                    call(1, 2, Some(2), &[("a", Moved(None, Some(1)))]),
                    call(3, 4, Some(1), &[("b", Moved(None, Some(1)))]),
                ],
            ),
            (
                "a write logged before what was seen without it",
                vec![call(1, 2, None, &[("a", Saw(Some(1)))]), call(3, 4, Some(1), &[("a", Moved(None, Some(1)))])],
            ),
            ("a swap from another value", vec![both.clone(), call(11, 12, Some(2), &[("a", Moved(Some(7), Some(8)))])]),
            ("a gap", vec![call(1, 2, Some(2), &[("a", Moved(None, Some(1)))])]),
            ("a number twice", vec![both, call(11, 12, Some(1), &[("c", Moved(None, Some(1)))])]),
        ] {
            assert!(check_log(&calls).is_err(), "{what} was believed");
        }
    }
}
