//! The routes of the REST API, made of the table of methods.

use std::collections::HashMap;
use std::sync::OnceLock;

use http::Method as Verb;
use percent_encoding::percent_decode_str;
use prost_reflect::MethodDescriptor;

use crate::method::{METHODS, Method};
use crate::schema::schema;

/// One part of a route's path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    /// A fixed word.
    Word(&'static str),
    /// The value of a field of the request, with a prefix added.
    Field {
        /// The path of the field in the request, with dots.
        field: &'static str,
        /// The text before the value; `workspaces/` for example.
        prefix: String,
    },
}

/// A method of the API at its place in the REST API.
#[derive(Clone, Debug)]
pub(crate) struct Route {
    pub(crate) verb: Verb,
    pub(crate) parts: Vec<Part>,
    pub(crate) method: &'static Method,
    pub(crate) descriptor: MethodDescriptor,
}

impl Route {
    /// Returns whether the response is the sandbox itself, without the field around it.
    pub(crate) fn is_bare(&self) -> bool {
        let output = self.descriptor.output();
        let mut fields = output.fields();
        let only = fields.next().filter(|_| fields.next().is_none());
        only.is_some_and(|field| {
            field.kind().as_message().is_some_and(|message| message.full_name() == "amalgam.v1.Sandbox")
                && !field.is_list()
        })
    }
}

/// A route that matches a request, with the values of the fields in its path.
pub(crate) struct RouteMatch {
    pub(crate) route: &'static Route,
    pub(crate) fields: Vec<(&'static str, String)>,
}

/// Why no route matches a request.
pub(crate) enum NoRoute {
    /// There is no such path.
    NotFound,
    /// The path exists with other verbs.
    OtherVerbs(Vec<Verb>),
    /// A part of the path is not UTF-8 after decoding.
    Malformed,
}

/// Returns all routes, which are built on the first call.
pub(crate) fn routes() -> &'static [Route] {
    static ROUTES: OnceLock<Vec<Route>> = OnceLock::new();
    ROUTES.get_or_init(|| {
        let descriptors: HashMap<_, _> = schema()
            .services()
            .flat_map(|service| service.methods().collect::<Vec<_>>())
            .map(|method| (format!("{}/{}", method.parent_service().full_name(), method.name()), method))
            .collect();
        METHODS
            .iter()
            .filter(|method| !method.rest.is_empty())
            .map(|method| {
                let (verb, path) = method.rest.split_once(' ').expect("a verb and a path");
                let verb = Verb::from_bytes(verb.as_bytes()).expect("a verb");
                let descriptor = descriptors.get(method.name).expect("the table has methods of the API only").clone();
                Route { verb, parts: parts(path), method, descriptor }
            })
            .collect()
    })
}

/// Finds the route of a request. `path` is the part behind the API's root or the name of the project.
pub(crate) fn find(verb: &Verb, path: &str) -> Result<RouteMatch, NoRoute> {
    let words: Result<Vec<_>, _> = path
        .split('/')
        .filter(|word| !word.is_empty())
        .map(|word| percent_decode_str(word).decode_utf8().map(std::borrow::Cow::into_owned))
        .collect();
    let words = words.map_err(|_| NoRoute::Malformed)?;
    let mut others = Vec::new();
    let mut best: Option<RouteMatch> = None;
    for route in routes() {
        let Some(fields) = fitting(&route.parts, &words) else { continue };
        if route.verb != *verb {
            others.push(route.verb.clone());
            continue;
        }
        // The route with the fewest fields wins: `operations/undo` also matches `operations/{name}`.
        if best.as_ref().is_none_or(|best| best.fields.len() > fields.len()) {
            best = Some(RouteMatch { route, fields });
        }
    }
    others.dedup();
    best.ok_or(if others.is_empty() { NoRoute::NotFound } else { NoRoute::OtherVerbs(others) })
}

fn fitting(parts: &[Part], words: &[String]) -> Option<Vec<(&'static str, String)>> {
    if parts.len() != words.len() {
        return None;
    }
    let mut fields = Vec::new();
    for (part, word) in parts.iter().zip(words) {
        match part {
            Part::Word(expected) if expected == word => {}
            Part::Word(_) => return None,
            Part::Field { field, prefix } => fields.push((*field, format!("{prefix}{word}"))),
        }
    }
    Some(fields)
}

fn parts(path: &'static str) -> Vec<Part> {
    let part = |word: &'static str| match word.strip_prefix('{').and_then(|word| word.strip_suffix('}')) {
        None => Part::Word(word),
        Some(field) => match field.split_once('=') {
            None => Part::Field { field, prefix: String::new() },
            Some((field, prefix)) => Part::Field { field, prefix: format!("{prefix}/") },
        },
    };
    path.split('/').filter(|word| !word.is_empty()).map(part).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn a_word_wins_over_a_field_and_slashes_in_names_are_encoded() {
        let name = |verb, path: &str| match find(&verb, path) {
            Ok(found) => (found.route.method.name.rsplit('/').next().unwrap_or_default(), found.fields),
            Err(_) => ("", Vec::new()),
        };
        assert_eq!(name(Verb::GET, "/operations/watch").0, "WatchOperations");
        assert_eq!(name(Verb::GET, "/operations/17"), ("GetOperation", vec![("name", "operations/17".to_owned())]));
        let found = name(Verb::GET, "/workspaces/agents%2Fann");
        assert_eq!(found, ("GetWorkspace", vec![("name", "workspaces/agents/ann".to_owned())]));
        assert!(matches!(find(&Verb::PUT, "/workspaces"), Err(NoRoute::OtherVerbs(verbs)) if verbs.len() == 2));
        assert!(matches!(find(&Verb::GET, "/nothing"), Err(NoRoute::NotFound)));
        assert!(matches!(find(&Verb::GET, "/workspaces/%ff"), Err(NoRoute::Malformed)));
    }

    #[test]
    fn no_two_methods_share_a_place_and_every_field_exists() {
        let mut places = BTreeSet::new();
        for route in routes() {
            assert!(places.insert(route.method.rest), "{}", route.method.rest);
            for part in &route.parts {
                let Part::Field { field, .. } = part else { continue };
                let mut message = Some(route.descriptor.input());
                for word in field.split('.') {
                    let found = message.and_then(|message| message.get_field_by_name(word));
                    let found = found.unwrap_or_else(|| panic!("{}: no field {field}", route.method.rest));
                    message = found.kind().as_message().cloned();
                }
            }
        }
    }
}
