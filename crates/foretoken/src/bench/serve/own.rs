//! Our own server inside this process, on a port that is free, for as long as it is measured.

use anyhow::{Context, Result};
use engine::batch::Service;
use serde::{Deserialize, Serialize};
use server::ServerConfig;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use crate::bench::kernels::compute_name;
use crate::serve::{BatchArgs, IO_THREADS, public_name};
use cli::load::ModelArgs;

/// A running server. Dropping it without [`Own::stop`] leaves its threads to the end of the process.
pub(crate) struct Own {
    runtime: Runtime,
    service: Service,
    stop: oneshot::Sender<()>,
    served: JoinHandle<()>,
    pub(crate) url: String,
    pub(crate) conditions: Conditions,
}

/// What our own server ran with.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Conditions {
    pub(crate) model: String,
    pub(crate) threads: usize,
    pub(crate) isa: String,
    pub(crate) compute: String,
    pub(crate) kv_format: String,
    pub(crate) row_budget: usize,
}

impl Own {
    /// Loads the model and serves it.
    ///
    /// # Errors
    /// When the model cannot be had or no port is free.
    pub(crate) fn start(model: &ModelArgs, batch: &BatchArgs) -> Result<Self> {
        let runtime = Builder::new_multi_thread().worker_threads(IO_THREADS).enable_all().build();
        let runtime = runtime.context("cannot start the threads that talk to clients")?;
        let loaded = model.load(true)?;
        let conditions = Conditions {
            model: public_name(&loaded.name),
            threads: loaded.pool.threads(),
            isa: loaded.isa.to_string(),
            compute: compute_name(loaded.compute).to_owned(),
            kv_format: format!("{:?}", loaded.kv_format).to_lowercase(),
            row_budget: batch.row_budget(),
        };
        let names = vec![conditions.model.clone()];
        let config = ServerConfig { port: 0, served_model_names: names, ..ServerConfig::default() };
        let listener = runtime.block_on(server::bind(&config))?;
        let url = format!("http://{}", listener.local_addr().context("cannot tell the address")?);
        let (service, served) = batch.start(loaded)?;
        let (stop, stopped) = oneshot::channel();
        // Told to stop, or nobody left to tell it.
        let shutdown = async { stopped.await.unwrap_or_default() };
        let served = runtime.spawn(server::serve(listener, config, served, shutdown, std::future::pending()));
        Ok(Self { runtime, service, stop, served, url, conditions })
    }

    /// Ends the server when all its answers are finished.
    ///
    /// # Errors
    /// When its task had failed.
    pub(crate) fn stop(self) -> Result<()> {
        let Self { runtime, service, stop, served, .. } = self;
        // It may have ended by itself: then it says why below.
        let _ = stop.send(());
        runtime.block_on(served).context("the server's task failed")?;
        service.shutdown();
        Ok(())
    }
}
