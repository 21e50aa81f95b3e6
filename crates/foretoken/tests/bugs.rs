//! `docs/bugs.md` names tests: each has to be there.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

/// The functions of all sources below a directory.
fn functions(dir: &Path, found: &mut BTreeSet<String>) {
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            functions(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let text = fs::read_to_string(&path).unwrap();
            let names = text.split("fn ").skip(1).map(|rest| rest.split(['(', '<']).next().unwrap_or_default());
            found.extend(names.map(str::to_owned));
        }
    }
}

#[test]
fn every_test_that_is_named_is_there() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut known = BTreeSet::new();
    functions(&root.join("crates"), &mut known);
    let page = fs::read_to_string(root.join("docs/bugs.md")).unwrap();
    // Names of tests are sentences; options and fields are shorter.
    let named: Vec<&str> = page.split('`').skip(1).step_by(2).filter(|name| name.matches('_').count() >= 3).collect();
    assert!(named.len() > 50, "{} names", named.len());
    let missing: Vec<&&str> = named.iter().filter(|name| !known.contains(**name)).collect();
    assert!(missing.is_empty(), "{missing:?}");
}
