//! A concurrent ordered map: a trie of B+trees with lock-free readers.
