//! Rate limits: how many calls a key may make in a minute, by the class of the call.

use std::num::NonZeroU32;
use std::time::Duration;

use governor::clock::{Clock as _, DefaultClock};
use governor::state::keyed::DefaultKeyedStateStore;
use governor::{Quota, RateLimiter};

use crate::key::KeyId;

/// Number of remembered keys above which idle ones are dropped.
const KEYS_REMEMBERED_MAX: usize = 10_000;

/// Prefix of the methods of sandboxes.
const SANDBOXES: &str = "amalgam.v1.SandboxService/";

/// The class of a call. Each class has a limit of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallClass {
    /// Creating a sandbox, or forking one.
    CreateSandbox,
    /// Starting a command or a terminal.
    RunCommand,
    /// Everything else.
    Other,
}

impl CallClass {
    /// Returns the class of a method, by its name in the form `package.Service/Method`.
    pub fn of(method: &str) -> Self {
        match method.strip_prefix(SANDBOXES) {
            Some("CreateSandbox" | "ForkSandbox" | "RunOnFork") => Self::CreateSandbox,
            Some("RunCommand" | "StreamCommand" | "CreateTerminal") => Self::RunCommand,
            _ => Self::Other,
        }
    }
}

/// Calls per minute for each class.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RatePreset {
    /// Sandboxes created.
    pub create_sandbox: NonZeroU32,
    /// Commands run.
    pub run_command: NonZeroU32,
    /// Other calls.
    pub other: NonZeroU32,
}

impl RatePreset {
    /// 10 sandboxes, 100 commands and 1,000 other calls a minute.
    pub const STRICT: Self = Self::of(10, 100, 1_000);
    /// Sixty times the strict preset, so that a tree search is not throttled.
    pub const DEFAULT: Self = Self::of(600, 6_000, 60_000);

    /// Returns the preset with the same number for each class.
    pub const fn uniform(number: NonZeroU32) -> Self {
        Self { create_sandbox: number, run_command: number, other: number }
    }

    const fn of(create_sandbox: u32, run_command: u32, other: u32) -> Self {
        const fn positive(number: u32) -> NonZeroU32 {
            match NonZeroU32::new(number) {
                Some(number) => number,
                None => NonZeroU32::MIN,
            }
        }
        Self { create_sandbox: positive(create_sandbox), run_command: positive(run_command), other: positive(other) }
    }
}

type Limiter = RateLimiter<KeyId, DefaultKeyedStateStore<KeyId>, DefaultClock>;

/// The limits of all keys. A burst may use a whole minute's calls at once; they come back evenly over the minute.
pub struct RateLimits {
    create_sandbox: Limiter,
    run_command: Limiter,
    other: Limiter,
}

impl RateLimits {
    /// Returns limits of which no key has used anything yet.
    pub fn new(preset: RatePreset) -> Self {
        let limiter = |number| RateLimiter::keyed(Quota::per_minute(number));
        Self {
            create_sandbox: limiter(preset.create_sandbox),
            run_command: limiter(preset.run_command),
            other: limiter(preset.other),
        }
    }

    /// Counts one call of a key against the limit of its class.
    ///
    /// # Errors
    /// The key has used its calls; the value is the time after which one more is allowed, for `Retry-After`.
    pub fn count(&self, key: &KeyId, class: CallClass) -> Result<(), Duration> {
        let limiter = match class {
            CallClass::CreateSandbox => &self.create_sandbox,
            CallClass::RunCommand => &self.run_command,
            CallClass::Other => &self.other,
        };
        if limiter.len() > KEYS_REMEMBERED_MAX {
            limiter.retain_recent();
        }
        limiter.check_key(key).map_err(|refused| refused.wait_time_from(limiter.clock().now()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key::KeyText;

    #[test]
    fn the_classes_name_methods_that_exist() {
        let of_class =
            |class| crate::method::METHODS.iter().filter(|method| CallClass::of(method.name) == class).count();
        assert_eq!((of_class(CallClass::CreateSandbox), of_class(CallClass::RunCommand)), (3, 3));
    }

    #[test]
    fn a_key_that_used_its_calls_is_refused_and_others_are_not() {
        let limits = RateLimits::new(RatePreset::STRICT);
        let [one, other] = [1, 2].map(|seed| KeyText::from_random([seed; 42]).id().clone());
        for _ in 0..10 {
            assert_eq!(limits.count(&one, CallClass::CreateSandbox), Ok(()));
        }
        let wait = limits.count(&one, CallClass::CreateSandbox).expect_err("the eleventh");
        assert!(wait > Duration::ZERO && wait <= Duration::from_secs(6), "{wait:?}");
        assert_eq!(limits.count(&other, CallClass::CreateSandbox), Ok(()));
        assert_eq!(limits.count(&one, CallClass::RunCommand), Ok(()), "another class");
    }
}
