//! As much of a client as the storm needs: requests as bytes, so that they can be broken, and answers.

use std::io::{Error, ErrorKind, Result};

use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// What came back.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) head: String,
    pub(crate) body: String,
}

impl Answer {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }
}

/// A request on a connection that the server is to close.
pub(crate) fn post(path: &str, body: &str) -> Vec<u8> {
    message(path, body, "connection: close\r\n")
}

pub(crate) fn message(path: &str, body: &str, headers: &str) -> Vec<u8> {
    let length = body.len();
    format!("POST {path} HTTP/1.1\r\nhost: storm\r\n{headers}content-length: {length}\r\n\r\n{body}").into_bytes()
}

pub(crate) async fn get(address: &str, path: &str) -> Result<Answer> {
    ask(address, format!("GET {path} HTTP/1.1\r\nhost: storm\r\nconnection: close\r\n\r\n").as_bytes()).await
}

/// Sends a whole request and reads until the server closes.
pub(crate) async fn ask(address: &str, request: &[u8]) -> Result<Answer> {
    let mut stream = TcpStream::connect(address).await?;
    stream.write_all(request).await?;
    read_to_end(&mut stream).await
}

pub(crate) async fn read_to_end(stream: &mut TcpStream) -> Result<Answer> {
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes).await?;
    parse(bytes)
}

/// Reads one answer with a length from a connection that stays open.
pub(crate) async fn read_one(stream: &mut TcpStream) -> Result<Answer> {
    let mut bytes = Vec::new();
    loop {
        let text = String::from_utf8_lossy(&bytes);
        if let Some((head, body)) = text.split_once("\r\n\r\n") {
            let length = header(head, "content-length").and_then(|length| length.parse().ok());
            if body.len() >= length.ok_or(Error::new(ErrorKind::InvalidData, format!("no length: {head}")))? {
                return parse(bytes);
            }
        }
        if stream.read_buf(&mut bytes).await? == 0 {
            return Err(ErrorKind::UnexpectedEof.into());
        }
    }
}

/// A header of an answer, whose names the server writes in small letters.
pub(crate) fn header<'a>(head: &'a str, name: &str) -> Option<&'a str> {
    head.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "))
}

pub(crate) fn parse(bytes: Vec<u8>) -> Result<Answer> {
    let wrong = |what: &str| Error::new(ErrorKind::InvalidData, what);
    if bytes.is_empty() {
        return Err(ErrorKind::UnexpectedEof.into());
    }
    let text = String::from_utf8(bytes).map_err(|_| wrong("not UTF-8"))?;
    let (head, body) = text.split_once("\r\n\r\n").ok_or_else(|| wrong("no end of the head"))?;
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).ok_or_else(|| wrong("no status"))?;
    let chunked = header(head, "transfer-encoding") == Some("chunked");
    let body = if chunked { unchunked(body).ok_or_else(|| wrong("a broken chunk"))? } else { body.to_owned() };
    Ok(Answer { status, head: head.to_owned(), body })
}

fn unchunked(mut body: &str) -> Option<String> {
    let mut text = String::new();
    loop {
        let (length, rest) = body.split_once("\r\n")?;
        let length = usize::from_str_radix(length, 16).ok()?;
        if length == 0 {
            return Some(text);
        }
        text.push_str(rest.get(..length)?);
        body = rest.get(length..)?.strip_prefix("\r\n")?;
    }
}
