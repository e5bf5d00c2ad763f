//! What a server's ids are called: their bytes, and which of them are text.
//!
//! Text of whole characters is exact. A token that is part of a character is shown as U+FFFD by a server that detokenises, which
//! is never taken for its bytes: they are learnt from a text of whole characters that the server cuts into the same tokens.
//! Where that fails the token has no bytes and is called `<|id:N|>`.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Mutex;

use anyhow::Result;

use super::dialect::Dialect;
use super::http::Client;
use crate::text::display;
use crate::text::tokenizer::{Reply, Token, reply_of};

/// Stands between tokens whose texts are asked for together; a line break and ASCII, so that it completes no character.
const BETWEEN: &str = "\n#|#\n";

/// Tokens whose texts are asked for together.
const TOGETHER: usize = 200;

/// What is known of a server's ids.
#[derive(Default)]
pub(super) struct Names {
    known: Mutex<Known>,
}

#[derive(Default)]
struct Known {
    tokens: HashMap<u32, Token>,
    /// Texts of replies with a token of which no bytes are known.
    replies: HashMap<Vec<u32>, String>,
}

impl Names {
    /// Learns the names of ids and the texts of replies.
    ///
    /// # Errors
    /// When the server does not answer.
    pub(super) fn learn(
        &self,
        client: &Client,
        dialect: &dyn Dialect,
        ids: &BTreeSet<u32>,
        replies: &[Vec<u32>],
    ) -> Result<()> {
        let mut known = self.known.lock().expect("nothing panics with the names");
        let mut unknown = Vec::new();
        for &id in ids {
            if known.tokens.contains_key(&id) {
                continue;
            }
            match dialect.bytes(id) {
                Some(bytes) => drop(known.tokens.insert(id, token(id, bytes, false))),
                None => unknown.push(id),
            }
        }
        for (id, text) in texts(client, dialect, &unknown)? {
            let bytes = match text.contains(char::REPLACEMENT_CHARACTER) {
                true => Vec::new(),
                false => text.clone().into_bytes(),
            };
            // an id without any text has no name
            let special =
                text.is_empty() || looks_like_control(&text) && !dialect.force(client, id)?.is_text;
            known.tokens.insert(id, token(id, bytes, special));
        }
        for reply in replies {
            let is_open = |id: &u32| {
                known
                    .tokens
                    .get(id)
                    .is_none_or(|token| token.bytes.is_empty())
            };
            if !reply.iter().any(is_open) || known.replies.contains_key(reply) {
                continue;
            }
            let plain: Vec<u32> = reply
                .iter()
                .copied()
                .filter(|id| !known.tokens.get(id).is_some_and(|token| token.special))
                .collect();
            let text = dialect.text(client, &plain)?;
            let spelt = dialect.spell(client, &text)?;
            for (id, bytes) in spelt {
                if known
                    .tokens
                    .get(&id)
                    .is_some_and(|token| token.bytes.is_empty())
                {
                    known.tokens.insert(id, token(id, bytes, false));
                }
            }
            known.replies.insert(reply.clone(), text);
        }
        Ok(())
    }

    /// Returns what there is to know of an id.
    pub(super) fn token(&self, id: u32) -> Token {
        let known = self.known.lock().expect("nothing panics with the names");
        let found = known.tokens.get(&id).cloned();
        found.unwrap_or_else(|| token(id, Vec::new(), false))
    }

    /// Returns the text of a reply, without control tokens.
    pub(super) fn detokenize(&self, ids: &[u32]) -> Reply {
        let known = self.known.lock().expect("nothing panics with the names");
        let tokens = ids.iter().filter_map(|id| known.tokens.get(id));
        let tokens: Vec<&Token> = tokens.filter(|token| !token.special).collect();
        if let Some(text) = known.replies.get(ids)
            && tokens.iter().any(|token| token.bytes.is_empty())
        {
            return Reply {
                text: text.clone(),
                incomplete_bytes: Vec::new(),
            };
        }
        let bytes = tokens.iter().flat_map(|token| token.bytes.iter().copied());
        reply_of(&bytes.collect::<Vec<u8>>())
    }
}

fn token(id: u32, bytes: Vec<u8>, special: bool) -> Token {
    Token {
        text: match bytes.as_slice() {
            [] => format!("<|id:{id}|>"),
            bytes => display::escape(bytes),
        },
        bytes,
        special,
    }
}

/// Returns the text of each id by itself.
fn texts(client: &Client, dialect: &dyn Dialect, ids: &[u32]) -> Result<BTreeMap<u32, String>> {
    let mut texts = BTreeMap::new();
    if ids.is_empty() {
        return Ok(texts);
    }
    let between = dialect.encode(client, BETWEEN, false, true)?;
    for ids in ids.chunks(TOGETHER) {
        let mut sequence = between.clone();
        for &id in ids {
            sequence.push(id);
            sequence.extend(&between);
        }
        let text = dialect.text(client, &sequence)?;
        let pieces: Vec<&str> = text.split(BETWEEN).collect();
        // one before the first and one behind the last
        if pieces.len() == ids.len() + 2 {
            let pieces = pieces[1..].iter().map(|&piece| piece.to_owned());
            texts.extend(ids.iter().copied().zip(pieces));
        } else {
            for &id in ids {
                texts.insert(id, dialect.text(client, &[id])?);
            }
        }
    }
    Ok(texts)
}

/// Whether a text could be a control token's name; the server is asked then.
pub(super) fn looks_like_control(text: &str) -> bool {
    let text = text.trim();
    text.len() > 2
        && ((text.starts_with('<') && text.ends_with('>'))
            || (text.starts_with('[') && text.ends_with(']')))
}
