//! Where a training is, so that it can go on after a kill: weights, the optimiser's state, and how far it had come.

use std::collections::HashMap;
use std::path::Path;

use candle_core::{Device, Tensor};
use safetensors::{Dtype, SafeTensors};
use serde_json::{Value, json};

use crate::TrainError;
use crate::dspark::Dspark;
use crate::files::{Written, write_tensors};
use crate::ops::values;

/// How far a training has come.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct Reached {
    pub(crate) steps: u64,
    pub(crate) seconds: f64,
}

/// The name under which the file says what it is of.
const ABOUT: &str = "foretoken";

/// What must be the same where a training goes on.
fn shape(drafter: &Dspark) -> Value {
    let shape = &drafter.shape;
    json!({
        "layers": shape.layers, "block": shape.block, "rank": shape.rank, "mask": shape.mask, "taps": shape.taps,
        "known": drafter.vocabulary.len(),
    })
}

/// Writes a checkpoint.
pub(crate) fn write(path: &Path, drafter: &Dspark, reached: Reached) -> Result<(), TrainError> {
    let about = json!({ "shape": shape(drafter), "steps": reached.steps, "seconds": reached.seconds });
    let mut tensors: Vec<Written> = Vec::new();
    let bytes = |numbers: &[f32]| numbers.iter().flat_map(|x| x.to_le_bytes()).collect::<Vec<u8>>();
    for (name, parameter) in &drafter.parameters.all {
        let shape = parameter.var.dims().to_vec();
        tensors.push((name.clone(), Dtype::F32, shape, bytes(&values(&parameter.var)?)));
        for (moment, which) in parameter.moments.iter().zip(["first", "second"]) {
            tensors.push((format!("{which} moment of {name}"), Dtype::F32, vec![moment.len()], bytes(moment)));
        }
    }
    let ids: Vec<u8> = drafter.vocabulary.ids().iter().flat_map(|id| id.to_le_bytes()).collect();
    tensors.push(("vocabulary".into(), Dtype::U32, vec![drafter.vocabulary.len()], ids));
    write_tensors(path, Some(HashMap::from([(ABOUT.to_owned(), about.to_string())])), tensors)
}

/// Puts a drafter where the checkpoint at `path` was; `None`: there is none.
pub(crate) fn read(path: &Path, drafter: &mut Dspark) -> Result<Option<Reached>, TrainError> {
    let bytes = match std::fs::read(path) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(source) => return Err(TrainError::io("read", path, source)),
    };
    let broken = |source| TrainError::Safetensors { file: path.display().to_string(), source };
    let (_, header) = SafeTensors::read_metadata(&bytes).map_err(broken)?;
    let file = SafeTensors::deserialize(&bytes).map_err(broken)?;
    let about = header.metadata().as_ref().and_then(|about| serde_json::from_str(about.get(ABOUT)?).ok());
    let about: Value = about.ok_or_else(|| TrainError::broken(path, "is no checkpoint of a training"))?;
    if about["shape"] != shape(drafter) {
        let problem = format!(
            "is of a drafter with {}, and this one has {}: give the same options, or another --out",
            about["shape"],
            shape(drafter)
        );
        return Err(TrainError::broken(path, problem));
    }
    let part = |name: &str, bytes: usize| {
        let part = file.tensor(name).map_err(broken)?;
        let problem = || TrainError::broken(path, format!("{name} has the shape {:?}", part.shape()));
        if part.data().len() == bytes { Ok(part.data().to_vec()) } else { Err(problem()) }
    };
    let ids = part("vocabulary", 4 * drafter.vocabulary.len())?;
    if !ids.as_chunks().0.iter().map(|&id| u32::from_le_bytes(id)).eq(drafter.vocabulary.ids().iter().copied()) {
        let problem = "knows other tokens: the texts have changed since; go on with them as they were, or choose another --out";
        return Err(TrainError::broken(path, problem));
    }
    for (name, parameter) in &mut drafter.parameters.all {
        let count = parameter.var.elem_count();
        let numbers = |name: &str| -> Result<Vec<f32>, TrainError> {
            Ok(part(name, 4 * count)?.as_chunks().0.iter().map(|&x| f32::from_le_bytes(x)).collect())
        };
        parameter.var.set(&Tensor::from_vec(numbers(name)?, parameter.var.shape(), &Device::Cpu)?)?;
        parameter.moments = [numbers(&format!("first moment of {name}"))?, numbers(&format!("second moment of {name}"))?];
    }
    let steps = about["steps"].as_u64().unwrap_or(0);
    Ok(Some(Reached { steps, seconds: about["seconds"].as_f64().unwrap_or(0.0) }))
}
