//! The variables of Hugging Face's own tools, read in one place: where the cache is, which hub, which token.
//!
//! Names and precedence are those of huggingface_hub's `constants.py`, so that a model fetched by either is found by
//! both. Nothing here touches the network; the token is never shown.

use std::ffi::OsString;
use std::fmt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

/// What the environment says about the hub.
#[derive(Debug)]
pub struct HubEnvironment {
    /// Folder of all cached models; `None` where neither a variable nor a home folder names one.
    pub cache: Option<PathBuf>,
    /// Address of the hub, without a slash at its end.
    pub endpoint: String,
    /// Who asks.
    pub token: Option<Token>,
    /// Whether the network is forbidden.
    pub is_offline: bool,
    /// Whether progress bars are unwanted.
    pub hides_progress: bool,
}

/// A secret that proves who asks; its `Debug` does not show it.
pub struct Token(String);

impl HubEnvironment {
    /// Reads the variables of this process.
    pub fn from_env() -> Self {
        let home = std::env::home_dir().filter(|home| !home.as_os_str().is_empty());
        Self::from_variables(&|name| std::env::var_os(name), home.as_deref())
    }

    /// Reads variables through `variable`; an empty one counts as unset.
    pub fn from_variables(
        variable: &dyn Fn(&str) -> Option<OsString>,
        home: Option<&Path>,
    ) -> Self {
        let set = |name: &str| variable(name).filter(|value| !value.is_empty());
        let folder = |name: &str| set(name).map(|value| expand_home(PathBuf::from(value), home));
        let text = |name: &str| set(name)?.into_string().ok();
        let is_true = |name: &str| {
            let truths = ["1", "ON", "YES", "TRUE"];
            text(name).is_some_and(|value| truths.contains(&value.to_ascii_uppercase().as_str()))
        };
        let hf_home = folder("HF_HOME").or_else(|| {
            let caches = folder("XDG_CACHE_HOME").or_else(|| Some(home?.join(".cache")))?;
            Some(caches.join("huggingface"))
        });
        let token_file = folder("HF_TOKEN_PATH").or_else(|| Some(hf_home.as_ref()?.join("token")));
        let token = text("HF_TOKEN")
            .or_else(|| text("HUGGING_FACE_HUB_TOKEN"))
            .or_else(|| std::fs::read_to_string(token_file?).ok())
            .and_then(|token| Token::new(&token));
        Self {
            cache: folder("HF_HUB_CACHE")
                .or_else(|| folder("HUGGINGFACE_HUB_CACHE"))
                .or_else(|| Some(hf_home?.join("hub"))),
            endpoint: text("HF_ENDPOINT").map_or_else(
                || "https://huggingface.co".to_owned(),
                |endpoint| endpoint.trim().trim_end_matches('/').to_owned(),
            ),
            token: token.filter(|_| !is_true("HF_HUB_DISABLE_IMPLICIT_TOKEN")),
            is_offline: is_true("HF_HUB_OFFLINE") || is_true("TRANSFORMERS_OFFLINE"),
            hides_progress: is_true("HF_HUB_DISABLE_PROGRESS_BARS"),
        }
    }

    /// Returns the cache folder.
    ///
    /// # Errors
    /// When there is none, with the variable that names one.
    pub fn cache_folder(&self) -> Result<&Path> {
        self.cache
            .as_deref()
            .context("no home folder for the cache: set HF_HOME to a folder for models")
    }

    /// Checks what is needed only when the network is.
    ///
    /// # Errors
    /// When the endpoint is no address or the token could not be sent; the token is not shown.
    pub fn check_for_network(&self) -> Result<()> {
        let is_web = ["http://", "https://"]
            .iter()
            .any(|scheme| self.endpoint.starts_with(scheme));
        ensure!(
            is_web && !self.endpoint.contains(char::is_whitespace),
            "HF_ENDPOINT is `{}` (expected an address such as https://huggingface.co)",
            self.endpoint
        );
        let is_sendable = |token: &Token| token.0.bytes().all(|byte| byte.is_ascii_graphic());
        ensure!(
            self.token.as_ref().is_none_or(is_sendable),
            "the token (HF_TOKEN or its file) holds a blank or another character that no token has"
        );
        Ok(())
    }
}

impl Token {
    /// Takes a token as people paste it: without line breaks and the blanks around it; `None` if nothing is left.
    pub fn new(text: &str) -> Option<Self> {
        let token = text.replace(['\r', '\n'], "").trim().to_owned();
        (!token.is_empty()).then_some(Self(token))
    }

    /// Returns the secret, for the request alone.
    pub(super) fn secret(&self) -> String {
        self.0.clone()
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(hidden)")
    }
}

fn expand_home(path: PathBuf, home: Option<&Path>) -> PathBuf {
    match (path.strip_prefix("~"), home) {
        (Ok(rest), Some(home)) => home.join(rest),
        _ => path,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(variables: &[(&str, &str)]) -> HubEnvironment {
        let find = |name: &str| {
            let found = variables.iter().find(|(key, _)| *key == name);
            found.map(|(_, value)| OsString::from(value))
        };
        HubEnvironment::from_variables(&find, Some(Path::new("/home/u")))
    }

    #[test]
    fn the_cache_is_where_the_python_tools_have_it() {
        let cache = |variables: &[(&str, &str)]| read(variables).cache.expect("a cache");
        let all = [
            ("HF_HUB_CACHE", "/a"),
            ("HUGGINGFACE_HUB_CACHE", "/b"),
            ("HF_HOME", "/c"),
            ("XDG_CACHE_HOME", "/d"),
        ];
        let expected = ["/a", "/b", "/c/hub", "/d/huggingface/hub"];
        for (first, expected) in expected.into_iter().enumerate() {
            assert_eq!(cache(&all[first..]), Path::new(expected));
        }
        let default = Path::new("/home/u/.cache/huggingface/hub");
        assert_eq!(cache(&[]), default);
        assert_eq!(cache(&[("HF_HOME", "")]), default);
        assert_eq!(cache(&[("HF_HOME", "~/m")]), Path::new("/home/u/m/hub"));
    }

    #[test]
    fn without_a_home_the_variable_to_set_is_named() {
        let environment = HubEnvironment::from_variables(&|_| None, None);
        let error = environment
            .cache_folder()
            .expect_err("no cache")
            .to_string();
        assert!(error.contains("set HF_HOME"), "{error}");
    }

    #[test]
    fn a_token_loses_blanks_and_line_breaks_and_is_never_shown() {
        let secret = |variables: &[(&str, &str)]| read(variables).token.map(|token| token.secret());
        let new = ("HF_TOKEN", " hf_abc\r\n");
        let old = ("HUGGING_FACE_HUB_TOKEN", "hf_old");
        assert_eq!(secret(&[new, old]).as_deref(), Some("hf_abc"));
        assert_eq!(secret(&[old]).as_deref(), Some("hf_old"));
        assert_eq!(secret(&[("HF_TOKEN", " \n")]), None);
        assert_eq!(secret(&[new, ("HF_HUB_DISABLE_IMPLICIT_TOKEN", "1")]), None);
        assert!(!format!("{:?}", read(&[new])).contains("hf_abc"));
        let odd = read(&[("HF_TOKEN", "hf_a\u{7}b")]);
        let error = odd.check_for_network().expect_err("a bell").to_string();
        assert!(
            error.contains("HF_TOKEN") && !error.contains("hf_a"),
            "{error}"
        );
    }

    #[test]
    fn a_token_file_is_read_where_no_variable_has_one() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        std::fs::write(folder.path().join("token"), "hf_file\n").expect("a file");
        let home = folder.path().to_str().expect("UTF-8");
        let file = format!("{home}/token");
        for variable in [("HF_HOME", home), ("HF_TOKEN_PATH", &file)] {
            let token = read(&[variable]).token.expect("a token");
            assert_eq!(token.secret(), "hf_file");
        }
    }

    #[test]
    fn switches_are_on_for_the_four_words_only() {
        for (value, expected) in [
            ("1", true),
            ("on", true),
            ("Yes", true),
            ("TRUE", true),
            ("0", false),
            ("2", false),
        ] {
            assert_eq!(
                read(&[("HF_HUB_OFFLINE", value)]).is_offline,
                expected,
                "{value}"
            );
        }
        assert!(read(&[("TRANSFORMERS_OFFLINE", "1")]).is_offline);
        assert!(read(&[("HF_HUB_DISABLE_PROGRESS_BARS", "1")]).hides_progress);
        assert!(!read(&[]).hides_progress);
    }

    #[test]
    fn an_endpoint_loses_its_last_slash_and_must_be_an_address() {
        let mirror = read(&[("HF_ENDPOINT", "http://127.0.0.1:80/ ")]);
        assert_eq!(mirror.endpoint, "http://127.0.0.1:80");
        mirror.check_for_network().expect("an address");
        let error = read(&[("HF_ENDPOINT", "mirror")]).check_for_network();
        assert!(
            error
                .expect_err("no address")
                .to_string()
                .contains("HF_ENDPOINT is `mirror`")
        );
    }
}
