//! Every scenario file says what follows from its commands. `UPDATE_GOLDEN=1` writes it anew.

use std::fs;
use std::path::Path;

#[test]
fn scenarios_say_what_follows() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("scenarios");
    let update = std::env::var_os("UPDATE_GOLDEN").is_some();
    let mut paths: Vec<_> = fs::read_dir(&folder)
        .expect("the folder is there")
        .map(|entry| entry.expect("a readable folder").path())
        .collect();
    paths.sort();
    assert!(!paths.is_empty());
    let mut wrong = Vec::new();
    for path in paths {
        let text = fs::read_to_string(&path).expect("a readable file");
        let fresh = sim::run_scenario::<sim::Vsr>(&text);
        let fresh = fresh.unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        if fresh == text {
            continue;
        }
        if update {
            fs::write(&path, &fresh).expect("a writable file");
            continue;
        }
        let differs = fresh.lines().zip(text.lines()).find(|(fresh, text)| fresh != text);
        wrong.push(format!("{}: {differs:?}", path.display()));
    }
    assert!(wrong.is_empty(), "run with UPDATE_GOLDEN=1 and look: {wrong:#?}");
}
