//! The web page: what it is made of is there, closed to everything outside, and open without a key.

mod support;

use server::ServerConfig;
use support::{Answer, Fixture};

fn assert_closed(answer: &Answer) {
    assert_eq!(answer.status, 200, "{}", answer.body);
    let policy = answer.headers["content-security-policy"].to_str().unwrap();
    assert!(policy.starts_with("default-src 'none'"), "{policy}");
    // Of the keywords only these two: none that lets code or styles stand in the page itself.
    let keywords = policy.split(['\'']).skip(1).step_by(2);
    assert!(keywords.clone().count() > 1, "{policy}");
    keywords.for_each(|keyword| assert!(["none", "self"].contains(&keyword), "{policy}"));
    assert_eq!(answer.headers["x-content-type-options"], "nosniff");
}

#[tokio::test]
async fn the_page_and_its_parts_need_no_key_and_nothing_from_elsewhere() {
    let config = ServerConfig { api_key: Some("sesame".into()), ..ServerConfig::default() };
    let fixture = Fixture::with(config, 1);
    let page = fixture.get("/").await;
    assert_closed(&page);
    assert_eq!(page.headers["content-type"], "text/html; charset=utf-8");
    // The page names some parts, these name the others.
    let mut parts: Vec<String> = named(&page.body, "\"ui/");
    assert!(parts.len() >= 3, "{parts:?}");
    let mut at = 0;
    while let Some(name) = parts.get(at).cloned() {
        let part = fixture.get(&format!("/ui/{name}")).await;
        assert_closed(&part);
        assert!(!part.body.contains("https://"), "{name} names another place");
        parts.extend(
            named(&part.body, "from \"./").into_iter().filter(|name| !parts.contains(name)).collect::<Vec<_>>(),
        );
        at += 1;
    }
    assert!(parts.iter().any(|name| name == "markdown.js"), "{parts:?}");
    assert!(!page.body.contains("https://") && !page.body.contains("<script>"));

    assert_eq!(fixture.get("/ui/nothing.js").await.error(404)["code"], "not_found");
    assert_eq!(fixture.get("/ui/..%2Fapp.rs").await.error(404)["code"], "not_found");
    fixture.get("/ui/%ff").await.error(400);
    fixture.get("/metrics").await.error(401);
}

/// What stands between `before` and the next quote.
fn named(text: &str, before: &str) -> Vec<String> {
    text.split(before).skip(1).filter_map(|rest| rest.split('"').next().map(str::to_owned)).collect()
}
