//! The costs of steps, measured once for a model on a machine and kept between runs.
//!
//! A file for each combination of all that a step's time depends on and that does not change while a process runs. What
//! other processes do at the time is not in it: serving corrects the curve by its own steps, and `--measure-costs`
//! measures it anew.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Result;
use engine::measure_cost;
use model::Model;
use model::source::Settings;
use serde::{Deserialize, Serialize};
use spec::CostCurve;

use cli::load::Loaded;
use cli::machine;

/// What a file holds.
#[derive(Debug, Serialize, Deserialize, PartialEq)]
struct Kept {
    /// What was measured, and on what.
    of: String,
    rows: Vec<usize>,
    contexts: Vec<usize>,
    /// `[contexts, rows]`
    seconds: Vec<f64>,
}

/// A model whose steps are measured.
#[derive(Clone, Copy)]
pub(crate) struct Measured<'a> {
    /// What it is called.
    pub(crate) name: &'a str,
    /// Size of its weight files.
    pub(crate) bytes_on_disk: u64,
    pub(crate) model: &'a Arc<Model>,
}

impl<'a> From<&'a Loaded> for Measured<'a> {
    fn from(loaded: &'a Loaded) -> Self {
        Self { name: &loaded.name, bytes_on_disk: loaded.bytes_on_disk, model: &loaded.model }
    }
}

/// The costs of steps of a model that runs as `target` does: as they were measured before, or else measured now. `anew`:
/// whatever was measured before.
///
/// # Errors
/// When they cannot be measured. A file that cannot be read or written is none: it only costs the time to measure.
pub(crate) fn curve(measured: Measured<'_>, target: &Loaded, anew: bool) -> Result<CostCurve> {
    let of = description(measured, target);
    let file = Settings::from_env().ok().map(|settings| path(&settings.cache, &of));
    if let Some(curve) = file.as_deref().filter(|_| !anew).and_then(|file| read(file, &of)) {
        return Ok(curve);
    }
    let curve = measure_cost(measured.model, &target.pool, target.kv_format)?;
    if let Some(file) = file {
        let (rows, contexts) = (curve.rows().to_vec(), curve.contexts().to_vec());
        // The next run measures again, which is all that is lost.
        let _ = write(&file, &Kept { of, rows, contexts, seconds: curve.points() });
    }
    Ok(curve)
}

/// All that the times depend on.
fn description(measured: Measured<'_>, target: &Loaded) -> String {
    let Measured { name, bytes_on_disk, model } = measured;
    let Loaded { pool, isa, compute, kv_format, .. } = target;
    format!(
        "{name}, {bytes_on_disk} bytes, {} a row; {}, {} threads, {isa}, {compute:?}, {kv_format:?}; foretoken {}",
        model.bytes_per_row(),
        machine::cpu(),
        pool.threads(),
        env!("CARGO_PKG_VERSION"),
    )
}

/// The file for a description: its name is a hash (FNV-1a), and what it is of stands inside.
fn path(cache: &Path, of: &str) -> PathBuf {
    let hash =
        of.bytes().fold(0xcbf2_9ce4_8422_2325u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3));
    cache.join("costs").join(format!("{hash:016x}.json"))
}

/// The curve in a file, if it is one of just that.
fn read(file: &Path, of: &str) -> Option<CostCurve> {
    let kept: Kept = serde_json::from_str(&fs::read_to_string(file).ok()?).ok()?;
    if kept.of != of {
        return None;
    }
    CostCurve::new(&kept.rows, &kept.contexts, &kept.seconds).ok()
}

/// Whole or not at all: two processes may write at the same time.
fn write(file: &Path, kept: &Kept) -> Result<()> {
    let folder = file.parent().unwrap_or(Path::new("."));
    fs::create_dir_all(folder)?;
    let mut temporary = tempfile::NamedTempFile::new_in(folder)?;
    temporary.write_all(serde_json::to_string(kept)?.as_bytes())?;
    temporary.persist(file)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_curve_is_found_again_and_only_for_what_it_is_of() {
        let folder = tempfile::tempdir().unwrap();
        let file = path(folder.path(), "a");
        assert_eq!(read(&file, "a"), None);
        let kept = Kept { of: "a".into(), rows: vec![1, 8], contexts: vec![0], seconds: vec![0.1, 0.2] };
        write(&file, &kept).unwrap();
        assert_eq!(read(&file, "a"), Some(CostCurve::new(&[1, 8], &[0], &[0.1, 0.2]).unwrap()));
        assert_eq!(read(&file, "b"), None);
        assert_ne!(path(folder.path(), "b"), file);
    }

    #[test]
    fn a_file_that_is_no_curve_counts_as_none() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("file");
        for text in [
            "",
            "{}",
            r#"{"of":"a","rows":[2,1],"contexts":[0],"seconds":[1,1]}"#,
            r#"{"of":"a","rows":[1],"contexts":[0],"seconds":[-1]}"#,
            r#"{"of":"a","rows":[],"contexts":[],"seconds":[]}"#,
        ] {
            fs::write(&file, text).unwrap();
            assert_eq!(read(&file, "a"), None, "{text}");
        }
    }
}
