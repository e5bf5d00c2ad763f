//! What the hub's refusals mean for the person at the keyboard.

use std::io::ErrorKind;

use hf_hub::api::sync::ApiError;

/// A request, as far as a message about it needs to know.
pub(super) struct Asked<'a> {
    /// Address of the hub.
    pub(super) endpoint: &'a str,
    /// The model.
    pub(super) id: &'a str,
    /// Branch, tag or commit.
    pub(super) revision: &'a str,
    /// The file; `None` for the model's description.
    pub(super) file: Option<&'a str>,
    /// Whether a token was sent.
    pub(super) has_token: bool,
}

impl Asked<'_> {
    /// Returns what a status other than success means; `code` is the hub's `X-Error-Code`.
    pub(super) fn refused(&self, status: u16, code: Option<&str>) -> String {
        let Self {
            endpoint,
            id,
            revision,
            ..
        } = self;
        match (status, code) {
            (401, _) if self.has_token => format!(
                "`{id}`: the hub does not accept the token (401): it is no longer valid, or there is no such model; \
                 set HF_TOKEN to a token of an account that may read it"
            ),
            (401, _) => format!(
                "`{id}`: the hub wants a login (401): the model is private or gated, or there is none of this name; \
                 set HF_TOKEN to a token of an account that may read it"
            ),
            (403, _) => format!(
                "`{id}`: the hub denies access (403): accept the model's terms at {endpoint}/{id}, \
                 signed in with the account that HF_TOKEN belongs to"
            ),
            (404, Some("RevisionNotFound")) => {
                format!("`{id}` has no revision `{revision}` (404); see {endpoint}/{id}/tree/main")
            }
            (404, _) => match self.file {
                Some(file) => format!("`{id}`: the hub lists {file}, but does not have it (404)"),
                None if *revision == "main" => format!(
                    "no model `{id}` at {endpoint}, or it is private (404); check the name, or set HF_TOKEN"
                ),
                None => format!(
                    "no model `{id}` at {endpoint}, or no revision `{revision}` of it, or it is private (404)"
                ),
            },
            (429, _) => format!("{endpoint}: too many requests (429); wait, or set HF_TOKEN"),
            (500.., _) => {
                format!("{endpoint}: the hub has a fault of its own ({status}); try again later")
            }
            _ => format!("`{id}`: {endpoint} answered with status {status}"),
        }
    }

    /// Returns what it means that no answer came.
    pub(super) fn unanswered(&self, cause: &dyn std::fmt::Display) -> String {
        format!(
            "`{}`: no answer from {}: {cause}; check the network, or give --model a local folder",
            self.id, self.endpoint
        )
    }

    /// Returns what it means that a transfer brought nothing more.
    pub(super) fn broken_off(&self, part_bytes: u64, size: u64, cause: &str) -> String {
        format!(
            "`{}`: {} broke off at {part_bytes} of {size} bytes: {cause}; run the command again to go on from there",
            self.id,
            self.file.unwrap_or("the transfer")
        )
    }

    /// Returns what it means that the answer is not a hub's.
    pub(super) fn misunderstood(&self, cause: &dyn std::fmt::Display) -> String {
        let what = self.file.unwrap_or("the model's description");
        format!(
            "`{}`: {} answers otherwise than a hub does ({what}: {cause}); check HF_ENDPOINT and any login page",
            self.id, self.endpoint
        )
    }
}

/// Returns the status that an error is about.
///
/// ureq is not a dependency of ours, so that its error is read by its text; a test on a real answer holds it to that.
pub(super) fn status(error: &ApiError) -> Option<u16> {
    let ApiError::RequestError(inner) = error else {
        return None;
    };
    inner
        .to_string()
        .strip_prefix("http status: ")?
        .parse()
        .ok()
}

/// Returns whether an error is the cache folder's, not the network's.
pub(super) fn is_of_the_disk(kind: ErrorKind) -> bool {
    matches!(
        kind,
        ErrorKind::StorageFull
            | ErrorKind::QuotaExceeded
            | ErrorKind::FileTooLarge
            | ErrorKind::PermissionDenied
            | ErrorKind::ReadOnlyFilesystem
            | ErrorKind::NotADirectory
            | ErrorKind::IsADirectory
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(status: u16, code: Option<&str>, revision: &str, has_token: bool) -> String {
        let asked = Asked {
            endpoint: "http://hub",
            id: "org/m",
            revision,
            file: None,
            has_token,
        };
        asked.refused(status, code)
    }

    #[test]
    fn each_refusal_says_what_to_do() {
        assert!(refused(401, None, "main", false).contains("wants a login (401)"));
        assert!(refused(401, None, "main", true).contains("does not accept the token (401)"));
        assert!(refused(403, None, "main", true).contains("terms at http://hub/org/m,"));
        assert!(refused(404, None, "main", false).contains("no model `org/m` at http://hub"));
        assert!(refused(404, None, "v9", false).contains("or no revision `v9` of it"));
        let message = refused(404, Some("RevisionNotFound"), "v9", false);
        assert!(
            message.starts_with("`org/m` has no revision `v9`"),
            "{message}"
        );
        assert!(refused(429, None, "main", false).contains("wait"));
        assert!(refused(503, None, "main", false).contains("try again later"));
        assert!(refused(418, None, "main", false).contains("status 418"));
    }

    #[test]
    fn a_full_disk_is_not_a_network_fault() {
        assert!(is_of_the_disk(ErrorKind::StorageFull));
        assert!(is_of_the_disk(ErrorKind::ReadOnlyFilesystem));
        assert!(!is_of_the_disk(ErrorKind::UnexpectedEof));
        assert!(!is_of_the_disk(ErrorKind::ConnectionReset));
    }
}
