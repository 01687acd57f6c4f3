//! Processes with more rights than whoever started them: what the environment says is then not believed (policy ABI-16).

use std::ffi::OsString;

/// The variable's value; `None` in a privileged process, as if it were not set.
pub fn trusted_variable(name: &str) -> Option<OsString> {
    if is_privileged() { None } else { std::env::var_os(name) }
}

/// True for set-uid, set-gid and file-capability programs.
#[cfg(unix)]
pub fn is_privileged() -> bool {
    unsafe extern "C" {
        safe fn getuid() -> u32;
        safe fn geteuid() -> u32;
        safe fn getgid() -> u32;
        safe fn getegid() -> u32;
    }
    getuid() != geteuid() || getgid() != getegid() || runs_secure()
}

/// There are no such programs.
#[cfg(not(unix))]
pub fn is_privileged() -> bool {
    false
}

/// What the kernel told the dynamic linker, capabilities included.
#[cfg(target_os = "linux")]
fn runs_secure() -> bool {
    /// Number of the entry in the auxiliary vector (`elf.h` of Linux).
    const AT_SECURE: u64 = 23;
    unsafe extern "C" {
        safe fn getauxval(kind: u64) -> u64;
    }
    getauxval(AT_SECURE) != 0
}

#[cfg(all(unix, not(target_os = "linux")))]
fn runs_secure() -> bool {
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_test_process_is_trusted() {
        assert_eq!(trusted_variable("PATH"), std::env::var_os("PATH"));
        assert!(!is_privileged());
    }
}
