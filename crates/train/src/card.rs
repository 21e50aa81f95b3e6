//! The model card of a drafter.

use std::env;
use std::fmt::Write;
use std::path::Path;

use train::{DrafterShape, HeldOut, Method, Trainer};

use crate::{TrainArgs, written};

/// The card, in Markdown.
pub(crate) fn card(
    args: &TrainArgs,
    shape: &DrafterShape,
    target: &str,
    trainer: &Trainer,
    held_out: Option<&HeldOut>,
) -> String {
    let [texts, looked_at] = trainer.texts();
    let own = args.texts.self_prompts;
    let prompts = match &args.texts.prompts {
        Some(path) => {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            format!("the prompts of `{name}` and {own} that it invented itself")
        }
        None => format!("{own} prompts that it invented itself"),
    };
    let command: Vec<String> = env::args().skip(1).map(without_folders).collect();
    let mut card = format!(
        "# A drafter for {target}\n\n\
         Drafts {} tokens a round for speculative decoding ({}). Made by Foretoken:\n\n    foretoken train {}\n\n\
         - Data: {texts} texts of the target, its answers to {prompts}; half of them greedy, half at temperature 0.8. \
         {looked_at} more were held out.\n\
         - Training: {} steps, {:.2} hours, seed {}.\n",
        shape.drafts,
        made_of(shape),
        command.join(" "),
        trainer.steps(),
        trainer.seconds() / 3600.0,
        args.seed,
    );
    if let Some(held_out) = held_out {
        let shares = |shares: Vec<f64>| shares.iter().map(|share| format!("{share:.3}")).collect::<Vec<_>>().join(", ");
        // Nothing can go wrong in writing to a string.
        let _ = writeln!(
            card,
            "- On the texts that were held out, had their own tokens come before each draft: {:.3} tokens a round at \
             temperature 1, {:.3} greedy (the target's own included); accepted by place: {}; the target's likeliest token by \
             place: {}.",
            held_out.tau(),
            held_out.greedy_tau(),
            shares(held_out.acceptance()),
            shares(held_out.agreement()),
        );
    }
    card.push_str("\nTry it with `foretoken run --draft DIRECTORY`.\n");
    card
}

/// What kind of drafter it is, and what of the target it is made of.
fn made_of(shape: &DrafterShape) -> String {
    let name = match shape.method {
        Method::Dspark => "DSpark",
        Method::Dflash => "DFlash",
        Method::Eagle3 => "EAGLE-3",
        Method::Mtp => "a module for multi-token prediction",
        Method::Medusa => "Medusa",
    };
    let taps = match shape.method.reads_taps() {
        true => format!("the outputs of the target's layers {} (from 0)", written(&shape.taps, ", ")),
        false => "the target's last hidden state".into(),
    };
    match shape.layers.len() {
        0 => format!("{name}; from {taps}"),
        1 => format!("{name}; a layer that began as the target's layer {}, from {taps}", shape.layers[0]),
        count => {
            let began = written(&shape.layers, ", ");
            format!("{name}; {count} layers that began as the target's layers {began}, from {taps}")
        }
    }
}

/// An argument, and where it is a file or folder of this machine, its name alone.
fn without_folders(argument: String) -> String {
    let path = Path::new(&argument);
    let is_nested = path.parent().is_some_and(|parent| parent != Path::new(""));
    match path.file_name().filter(|_| is_nested && path.exists()) {
        Some(name) => name.to_string_lossy().into_owned(),
        None => argument,
    }
}
