//! The sixteen policies of `msa-core/docs/ABI.md`, one test or more each, named after its number.
#![allow(clippy::unwrap_used)] // In the functions beside the tests too: a failure there fails the test.

mod abi_policies {
    mod border;
    mod calls;
    mod exceptions;
    mod fields;
    mod loading;
}

/// Every policy has a test that bears its number.
#[test]
fn no_policy_is_without_a_test() {
    let sources = [
        include_str!("abi_policies/border.rs"),
        include_str!("abi_policies/calls.rs"),
        include_str!("abi_policies/exceptions.rs"),
        include_str!("abi_policies/loading.rs"),
    ];
    for policy in msa_core::abi::Policy::ALL {
        let name = format!("#[test]\nfn abi_{:02}_", policy.number());
        assert!(sources.iter().any(|source| source.contains(&name)), "{policy}");
    }
}
