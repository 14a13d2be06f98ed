//! The raw mode of a terminal: every key goes to the program, nothing is echoed. The terminal gets its settings back when the guard
//! is dropped, and before a panic is reported.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Mutex, Once, PoisonError};

use rustix::termios::{LocalModes, OptionalActions, Termios, tcgetattr, tcgetwinsize, tcsetattr};

/// Columns and rows that are assumed for a terminal that does not report its size.
const SIZE_DEFAULT: (u16, u16) = (80, 24);

/// The settings of the terminal before raw mode; `None` if it is not in raw mode.
static BEFORE: Mutex<Option<Saved>> = Mutex::new(None);
static HOOK: Once = Once::new();

struct Saved {
    terminal: OwnedFd,
    settings: Termios,
}

/// A guard of raw mode, or of a terminal without echo: dropping it restores the settings. A process has one at a time.
pub struct RawMode(());

impl RawMode {
    /// Sets a terminal to raw mode.
    pub fn enter(terminal: impl AsFd) -> io::Result<Self> {
        Self::set(terminal, Termios::make_raw)
    }

    /// Sets a terminal to read lines without echo, for example for a password.
    pub fn without_echo(terminal: impl AsFd) -> io::Result<Self> {
        Self::set(terminal, |settings| settings.local_modes.remove(LocalModes::ECHO))
    }

    fn set(terminal: impl AsFd, change: impl FnOnce(&mut Termios)) -> io::Result<Self> {
        let terminal = terminal.as_fd().try_clone_to_owned()?;
        let settings = tcgetattr(&terminal)?;
        let mut changed = settings.clone();
        change(&mut changed);
        HOOK.call_once(|| {
            let report = std::panic::take_hook();
            std::panic::set_hook(Box::new(move |panic| {
                restore();
                report(panic);
            }));
        });
        *BEFORE.lock().unwrap_or_else(PoisonError::into_inner) =
            Some(Saved { terminal: terminal.try_clone()?, settings });
        tcsetattr(&terminal, OptionalActions::Flush, &changed)?;
        Ok(Self(()))
    }
}

impl Drop for RawMode {
    fn drop(&mut self) {
        restore();
    }
}

/// Restores the settings of the terminal, if they were not restored before.
fn restore() {
    let saved = BEFORE.lock().unwrap_or_else(PoisonError::into_inner).take();
    if let Some(Saved { terminal, settings }) = saved {
        // A terminal that was closed needs no settings.
        let _ = tcsetattr(&terminal, OptionalActions::Drain, &settings);
    }
}

/// Returns the columns and rows of a terminal.
pub fn window_size(terminal: impl AsFd) -> (u16, u16) {
    match tcgetwinsize(terminal) {
        Ok(size) if size.ws_col > 0 && size.ws_row > 0 => (size.ws_col, size.ws_row),
        _ => SIZE_DEFAULT,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{Mode, OFlags, open};
    use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};

    fn pair() -> (OwnedFd, OwnedFd) {
        let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).expect("a terminal");
        grantpt(&master).and_then(|()| unlockpt(&master)).expect("usable");
        let name = ptsname(&master, Vec::new()).expect("a name");
        let slave = open(name.as_c_str(), OFlags::RDWR | OFlags::NOCTTY, Mode::empty()).expect("the other end");
        (master, slave)
    }

    fn is_raw(terminal: &OwnedFd) -> bool {
        let modes = tcgetattr(terminal).expect("settings").local_modes;
        !modes.contains(LocalModes::ECHO) && !modes.contains(LocalModes::ICANON)
    }

    /// Checks both cases in one test, because the saved settings are global to the process.
    #[test]
    fn settings_come_back_at_the_end_and_after_a_panic() {
        let (_master, slave) = pair();
        let mode = RawMode::enter(&slave).expect("raw");
        assert!(is_raw(&slave));
        drop(mode);
        assert!(!is_raw(&slave));
        let panicked = std::thread::spawn({
            let slave = slave.try_clone().expect("a copy");
            move || {
                let mode = RawMode::enter(&slave).expect("raw");
                // Forgotten, so that only the panic hook can restore the settings.
                std::mem::forget(mode);
                assert!(!is_raw(&slave), "this panics, because the terminal is raw");
            }
        });
        assert!(panicked.join().is_err());
        assert!(!is_raw(&slave));
        let has_echo = || tcgetattr(&slave).expect("settings").local_modes.contains(LocalModes::ECHO);
        let hidden = RawMode::without_echo(&slave).expect("hidden");
        assert!(!has_echo() && !is_raw(&slave), "lines are read as before");
        drop(hidden);
        assert!(has_echo());
    }

    #[test]
    fn a_terminal_without_a_size_has_the_usual_one() {
        let (_master, slave) = pair();
        assert_eq!(window_size(&slave), SIZE_DEFAULT);
    }
}
