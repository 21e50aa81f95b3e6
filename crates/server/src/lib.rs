//! The engine over HTTP, as OpenAI's API has it, and a web page on top of that.
//!
//! This room turns requests into submissions to `engine::batch`, and its events into JSON or server-sent events. A field
//! that would change the output is honoured or refused by name, never dropped. How a step runs, what a page is and how a
//! token is chosen may not enter; neither may anything that blocks: the engine has a thread of its own, and what a
//! client does not read is at most its own answer.

mod app;
mod calls;
mod chat;
mod completions;
mod config;
mod connection;
mod drafting;
mod error;
mod fields;
mod generation;
mod grammars;
mod guard;
mod logprobs;
mod messages;
mod metrics;
mod openapi;
mod params;
mod record;
mod respond;
mod response_format;
mod serve;
mod shape;
mod status;
mod text;
mod tools;
mod ui;

#[cfg(test)]
extern crate self as server;
#[cfg(test)]
#[path = "../tests/support/mod.rs"]
mod support;

pub use app::{Served, router};
pub use config::ServerConfig;
pub use serve::{ServerError, bind, serve};
