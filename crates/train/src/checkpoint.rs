//! Where a training is, so that it can go on after a kill: weights, the optimiser's state, and how far it had come.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use candle_core::{Device, Tensor};
use safetensors::{Dtype, SafeTensors};
use serde_json::{Value, json};

use crate::TrainError;
use crate::drafter::Drafter;
use crate::files::{Written, write_tensors};
use crate::ops::values;
use crate::vocabulary::DraftVocabulary;

/// How far a training has come.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct Reached {
    pub(crate) steps: u64,
    pub(crate) seconds: f64,
}

/// The name under which the file says what it is of.
const ABOUT: &str = "foretoken";

/// Writes a checkpoint.
pub(crate) fn write(path: &Path, drafter: &Drafter, reached: Reached) -> Result<(), TrainError> {
    let about = json!({ "shape": drafter.fixed(), "steps": reached.steps, "seconds": reached.seconds });
    let mut tensors: Vec<Written> = Vec::new();
    let bytes = |numbers: &[f32]| numbers.iter().flat_map(|x| x.to_le_bytes()).collect::<Vec<u8>>();
    for (name, parameter) in &drafter.base.parameters.all {
        let shape = parameter.var.dims().to_vec();
        tensors.push((name.clone(), Dtype::F32, shape, bytes(&values(&parameter.var)?)));
        for (moment, which) in parameter.moments.iter().zip(["first", "second"]) {
            tensors.push((format!("{which} moment of {name}"), Dtype::F32, vec![moment.len()], bytes(moment)));
        }
    }
    let ids: Vec<u8> = drafter.base.vocabulary.ids().iter().flat_map(|id| id.to_le_bytes()).collect();
    tensors.push(("vocabulary".into(), Dtype::U32, vec![drafter.base.vocabulary.len()], ids));
    write_tensors(path, Some(HashMap::from([(ABOUT.to_owned(), about.to_string())])), tensors)
}

/// A checkpoint that was read.
pub(crate) struct Checkpoint {
    path: PathBuf,
    bytes: Vec<u8>,
    about: Value,
}

impl Checkpoint {
    /// Reads the checkpoint at `path`; `None`: there is none.
    pub(crate) fn open(path: &Path) -> Result<Option<Checkpoint>, TrainError> {
        let bytes = match std::fs::read(path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(source) => return Err(TrainError::io("read", path, source)),
        };
        let broken = |source| TrainError::Safetensors { file: path.display().to_string(), source };
        let (_, header) = SafeTensors::read_metadata(&bytes).map_err(broken)?;
        let about = header.metadata().as_ref().and_then(|about| serde_json::from_str(about.get(ABOUT)?).ok());
        let about: Value = about.ok_or_else(|| TrainError::broken(path, "is no checkpoint of a training"))?;
        Ok(Some(Checkpoint { path: path.to_owned(), bytes, about }))
    }

    /// The tokens that the drafter knows, `size` of the target's `vocab`.
    pub(crate) fn vocabulary(&self, size: usize, vocab: usize) -> Result<DraftVocabulary, TrainError> {
        let ids = self.numbers("vocabulary", size, u32::from_le_bytes)?;
        let known = DraftVocabulary::of(ids, vocab);
        known.ok_or_else(|| TrainError::broken(&self.path, "knows tokens that the target does not have"))
    }

    /// Puts a drafter where this one was, and answers how far it had come.
    pub(crate) fn restore(self, drafter: &mut Drafter) -> Result<Reached, TrainError> {
        if self.about["shape"] != drafter.fixed() {
            let (was, is) = (&self.about["shape"], drafter.fixed());
            let problem =
                format!("is of a drafter with {was}, and this one has {is}: give the same options, or another --out");
            return Err(TrainError::broken(&self.path, problem));
        }
        for (name, parameter) in &mut drafter.base.parameters.all {
            let numbers = |name: &str| self.numbers(name, parameter.var.elem_count(), f32::from_le_bytes);
            let moments = ["first", "second"].map(|which| numbers(&format!("{which} moment of {name}")));
            let [first, second] = moments;
            let weights = Tensor::from_vec(numbers(name)?, parameter.var.shape(), &Device::Cpu)?;
            parameter.moments = [first?, second?];
            parameter.var.set(&weights)?;
        }
        let steps = self.about["steps"].as_u64().unwrap_or(0);
        Ok(Reached { steps, seconds: self.about["seconds"].as_f64().unwrap_or(0.0) })
    }

    /// The numbers of a tensor, `count` of them.
    fn numbers<T>(&self, name: &str, count: usize, of: fn([u8; 4]) -> T) -> Result<Vec<T>, TrainError> {
        let broken = |source| TrainError::Safetensors { file: self.path.display().to_string(), source };
        let file = SafeTensors::deserialize(&self.bytes).map_err(broken)?;
        let part = file.tensor(name).map_err(broken)?;
        let numbers: Vec<T> = part.data().as_chunks().0.iter().map(|&bytes| of(bytes)).collect();
        let problem = || TrainError::broken(&self.path, format!("{name} has {} numbers, not {count}", numbers.len()));
        if numbers.len() == count { Ok(numbers) } else { Err(problem()) }
    }
}
