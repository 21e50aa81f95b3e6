//! A client of OpenAI's API that notes when what arrives: HTTP/1.1 without TLS, a connection for each request.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http1;
use hyper::header::{AUTHORIZATION, CONNECTION, CONTENT_TYPE, HOST};
use hyper::{Method, Request, Response, StatusCode, Uri};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::net::TcpStream;

use super::stream::{Answer, Stream};

/// Bytes of an answer that is read whole: a list of models, tokens of a text, an error.
const WHOLE_LIMIT: usize = 16 << 20;

/// Why a request has no answer. Requests are counted by `kind`; the message is one example of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Failure {
    pub(crate) kind: String,
    pub(crate) message: String,
}

impl Failure {
    pub(crate) fn new(kind: &str, message: impl ToString) -> Self {
        Self { kind: kind.to_owned(), message: message.to_string() }
    }
}

/// A server, and how to ask it.
#[derive(Debug)]
pub(crate) struct Client {
    host: String,
    port: u16,
    /// What stands before `/v1/...`: mostly nothing.
    base: String,
    authorization: Option<String>,
    timeout: Duration,
}

impl Client {
    /// Of the server at `url`, with or without the `/v1` that its clients are given. `timeout` is for a whole request.
    ///
    /// # Errors
    /// When `url` is none, or not of plain HTTP.
    pub(crate) fn new(url: &str, api_key: Option<&str>, timeout: Duration) -> Result<Self> {
        let uri: Uri = url.parse().with_context(|| format!("--url '{url}' is not a URL"))?;
        if uri.scheme_str() != Some("http") {
            bail!("--url '{url}' must begin with http://: this client has no TLS");
        }
        let host = uri.host().with_context(|| format!("--url '{url}' names no host"))?;
        let base = uri.path().trim_end_matches('/');
        Ok(Self {
            host: host.trim_start_matches('[').trim_end_matches(']').to_owned(),
            port: uri.port_u16().unwrap_or(80),
            base: base.strip_suffix("/v1").unwrap_or(base).to_owned(),
            authorization: api_key.map(|key| format!("Bearer {key}")),
            timeout,
        })
    }

    /// What a GET answers.
    ///
    /// # Errors
    /// When it does not answer with status 200 and JSON.
    pub(crate) async fn get(&self, path: &str) -> Result<Value, Failure> {
        self.whole(Method::GET, path, Bytes::new()).await
    }

    /// What a POST answers.
    ///
    /// # Errors
    /// When it does not answer with status 200 and JSON.
    pub(crate) async fn post(&self, path: &str, body: &Value) -> Result<Value, Failure> {
        self.whole(Method::POST, path, body.to_string().into()).await
    }

    /// A streamed generation. The clock starts before the connection is made.
    ///
    /// # Errors
    /// The first thing that goes wrong.
    pub(crate) async fn ask(&self, path: &str, body: Bytes) -> Result<Answer, Failure> {
        self.ask_watched(path, body, |_| ()).await
    }

    /// Like [`Client::ask`], and tells `watch` how many events with text have come, whenever some come.
    ///
    /// # Errors
    /// The first thing that goes wrong.
    pub(crate) async fn ask_watched(
        &self,
        path: &str,
        body: Bytes,
        mut watch: impl FnMut(usize),
    ) -> Result<Answer, Failure> {
        let mut stream = Stream::new(Instant::now());
        let read = async {
            let mut body = self.send(Method::POST, path, body).await?.into_body();
            while let Some(frame) = body.frame().await {
                let frame = frame.map_err(|error| Failure::new("broken stream", error))?;
                if let Ok(bytes) = frame.into_data() {
                    stream.take(&bytes, Instant::now())?;
                    watch(stream.events());
                }
            }
            Ok(())
        };
        self.in_time(read).await?;
        stream.finish(Instant::now())
    }

    async fn whole(&self, method: Method, path: &str, body: Bytes) -> Result<Value, Failure> {
        let read = async {
            let bytes = collect(self.send(method, path, body).await?).await?;
            serde_json::from_slice(&bytes).map_err(|error| Failure::new("not JSON", format!("{path}: {error}")))
        };
        self.in_time(read).await
    }

    async fn in_time<T>(&self, work: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
        let late = |_| Failure::new("timeout", format!("no answer within {} s", self.timeout.as_secs()));
        tokio::time::timeout(self.timeout, work).await.unwrap_or_else(|elapsed| Err(late(elapsed)))
    }

    /// Sends a request and waits for a response with status 200.
    async fn send(&self, method: Method, path: &str, body: Bytes) -> Result<Response<Incoming>, Failure> {
        let stream = TcpStream::connect((self.host.as_str(), self.port)).await;
        let stream = stream.map_err(|error| self.unreachable(&error))?;
        stream.set_nodelay(true).map_err(|error| self.unreachable(&error))?;
        let handshake = http1::handshake(TokioIo::new(stream)).await;
        let (mut sender, connection) = handshake.map_err(|error| self.unreachable(&error))?;
        // It ends with the response; how, the response says.
        tokio::spawn(connection);
        let response = sender.send_request(self.request(method, path, body)?).await;
        let response = response.map_err(|error| Failure::new("no response", error))?;
        match response.status() {
            StatusCode::OK => Ok(response),
            status => {
                let text = collect(response).await.unwrap_or_default();
                let text = String::from_utf8_lossy(&text).into_owned();
                Err(Failure::new(&format!("status {}", status.as_u16()), format!("{path}: {text}")))
            }
        }
    }

    fn request(&self, method: Method, path: &str, body: Bytes) -> Result<Request<Full<Bytes>>, Failure> {
        let host = if self.host.contains(':') { format!("[{}]", self.host) } else { self.host.clone() };
        let mut request = Request::builder()
            .method(method)
            .uri(format!("{}{path}", self.base))
            .header(HOST, format!("{host}:{}", self.port))
            .header(CONNECTION, "close")
            .header(CONTENT_TYPE, "application/json");
        if let Some(authorization) = &self.authorization {
            request = request.header(AUTHORIZATION, authorization);
        }
        request.body(Full::new(body)).map_err(|error| Failure::new("bad request", error))
    }

    fn unreachable(&self, error: &dyn std::error::Error) -> Failure {
        Failure::new("cannot connect", format!("{}:{}: {error}", self.host, self.port))
    }
}

async fn collect(response: Response<Incoming>) -> Result<Bytes, Failure> {
    let body = Limited::new(response.into_body(), WHOLE_LIMIT).collect().await;
    Ok(body.map_err(|error| Failure::new("broken response", error))?.to_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn client(url: &str) -> Result<Client> {
        Client::new(url, Some("key"), Duration::from_secs(1))
    }

    #[test]
    fn a_url_may_end_as_clients_are_given_it() {
        for (url, host, port, base) in [
            ("http://127.0.0.1:8080", "127.0.0.1", 8080, ""),
            ("http://localhost/v1/", "localhost", 80, ""),
            ("http://[::1]:9000/proxy/v1", "::1", 9000, "/proxy"),
        ] {
            let client = client(url).unwrap();
            assert_eq!((client.host.as_str(), client.port, client.base.as_str()), (host, port, base));
            client.request(Method::GET, "/v1/models", Bytes::new()).unwrap();
        }
    }

    #[test]
    fn a_url_that_cannot_be_asked_is_named() {
        for (url, told) in [("https://127.0.0.1", "no TLS"), ("127.0.0.1:80", "http://"), ("a b", "not a URL")] {
            let error = client(url).unwrap_err().to_string();
            assert!(error.contains(told) && error.contains(url), "{error}");
        }
    }
}
