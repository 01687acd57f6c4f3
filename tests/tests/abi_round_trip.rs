//! The whole path through a loaded plugin.

use msa_core::loader;
use msa_tests::{decode_case, plugin_files};

#[test]
fn a_decode_through_the_plugin_gives_the_bits_of_the_linked_backend() {
    let plugin = loader::open(&plugin_files::test_plugin(), "").unwrap();
    let linked = msa_test_plugin::backend(&mut Default::default()).unwrap();
    let (across, direct) = (plugin.open(0).unwrap(), linked.open(0).unwrap());
    assert_eq!(across.info(), direct.info());
    assert_eq!(across.support(&decode_case::op()), direct.support(&decode_case::op()));
    let wanted = decode_case::run(&direct).unwrap();
    assert!(wanted.output.iter().any(|byte| *byte != 0));
    assert_eq!(decode_case::run(&across).unwrap(), wanted);
}
