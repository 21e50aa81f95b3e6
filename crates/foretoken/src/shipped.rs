//! Drafters that come with the program, for models that many begin with.
//!
//! They lie in a folder `models` beside the program, in `share/foretoken/models` where it was installed so, or in the source
//! tree that it was built from.

use std::env;
use std::path::{Path, PathBuf};

use model::source::{DEFAULT, DEFAULT_OFFLINE};

/// Names of models, and the folder of the drafter for them.
const SHIPPED: &[(&[&str], &str)] = &[(&[DEFAULT, DEFAULT_OFFLINE], "smollm2-135m-instruct-dspark")];

/// The folder of the drafter that comes with the program for the model of this name; `None`: there is none.
pub(crate) fn drafter_for(model: &str) -> Option<PathBuf> {
    let (_, folder) = SHIPPED.iter().find(|(models, _)| models.contains(&model))?;
    let is_there = |dir: &PathBuf| dir.join("config.json").is_file();
    places().into_iter().map(|place| place.join(folder)).find(is_there)
}

fn places() -> Vec<PathBuf> {
    let own = env::current_exe().and_then(|own| own.canonicalize()).ok();
    let beside = own.as_deref().and_then(Path::parent);
    let installed = beside.and_then(Path::parent).map(|prefix| prefix.join("share/foretoken/models"));
    let built_from = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models");
    beside.map(|dir| dir.join("models")).into_iter().chain(installed).chain([built_from]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn models_that_nobody_has_trained_for_have_none() {
        assert_eq!(drafter_for("a/b"), None);
    }
}
