//! The rules of the book, in the words of the text protocol.

mod support;

use orderbook::Limits;
use support::{TINY, script};

const WIDE: Limits = Limits { orders: 100, symbols: 4, fills: 100 };

#[test]
fn a_better_price_goes_first_and_then_an_earlier_order() {
    script(
        WIDE,
        "LIMIT A SELL 10 101
         LIMIT A SELL 10 100
         LIMIT A SELL 10 100
         LIMIT A SELL 10 102
         LIMIT A BUY 25 101
         => OK 5 FILLED 25 RESTING 0 CANCELLED 0 TRADE 1 2 10 100 TRADE 2 3 10 100 TRADE 3 1 5 101
         TOP A
         => TOP A BID 0 0 ASK 101 5
         LIMIT A BUY 10 101
         => OK 6 FILLED 5 RESTING 5 CANCELLED 0 TRADE 4 1 5 101
         DEPTH A 5
         => DEPTH A BIDS 1 101 5 1 ASKS 1 102 10 1
         ORDER 6
         => ORDER 6 A BUY 101 RESTING 5 FILLED 5
         ORDER 1
         => ERR CLOSED_ORDER the order is no longer in the book",
    );
}

#[test]
fn sellers_meet_the_highest_bid_first() {
    script(
        WIDE,
        "LIMIT A BUY 5 99
         LIMIT A BUY 5 100
         LIMIT A SELL 8 99
         => OK 3 FILLED 8 RESTING 0 CANCELLED 0 TRADE 1 2 5 100 TRADE 2 1 3 99
         MARKET A SELL 9
         => OK 4 FILLED 2 RESTING 0 CANCELLED 7 TRADE 3 1 2 99
         MARKET A SELL 9
         => OK 5 FILLED 0 RESTING 0 CANCELLED 9",
    );
}

#[test]
fn less_keeps_its_place_and_more_loses_it() {
    script(
        WIDE,
        "LIMIT A SELL 10 100
         LIMIT A SELL 10 100
         MODIFY 1 4 100
         => OK 1 FILLED 0 RESTING 4 CANCELLED 6
         MODIFY 1 4 100
         => OK 1 FILLED 0 RESTING 4 CANCELLED 0
         IOC A BUY 2 100
         => OK 3 FILLED 2 RESTING 0 CANCELLED 0 TRADE 1 1 2 100
         MODIFY 1 3 100
         => OK 1 FILLED 0 RESTING 3 CANCELLED 0
         IOC A BUY 11 100
         => OK 4 FILLED 11 RESTING 0 CANCELLED 0 TRADE 2 2 10 100 TRADE 3 1 1 100",
    );
}

#[test]
fn another_price_loses_the_place_even_if_it_comes_back() {
    script(
        WIDE,
        "LIMIT A SELL 10 100
         LIMIT A SELL 10 100
         MODIFY 1 10 101
         => OK 1 FILLED 0 RESTING 10 CANCELLED 0
         MODIFY 1 10 100
         IOC A BUY 10 100
         => OK 3 FILLED 10 RESTING 0 CANCELLED 0 TRADE 1 2 10 100
         LIMIT A BUY 4 99
         MODIFY 4 6 100
         => OK 4 FILLED 6 RESTING 0 CANCELLED 0 TRADE 2 1 6 100
         MODIFY 4 6 100
         => ERR CLOSED_ORDER the order is no longer in the book
         LIMIT A BUY 9 99
         MODIFY 5 7 100
         => OK 5 FILLED 4 RESTING 3 CANCELLED 2 TRADE 3 1 4 100
         ORDER 5
         => ORDER 5 A BUY 100 RESTING 3 FILLED 4",
    );
}

#[test]
fn what_is_left_of_an_ioc_is_cancelled() {
    script(
        WIDE,
        "IOC A BUY 1 1
         => ERR UNKNOWN_SYMBOL no limit order was entered for it
         LIMIT A SELL 5 100
         LIMIT A SELL 5 101
         IOC A BUY 8 100
         => OK 3 FILLED 5 RESTING 0 CANCELLED 3 TRADE 1 1 5 100
         IOC A BUY 8 100
         => OK 4 FILLED 0 RESTING 0 CANCELLED 8
         CANCEL 4
         => ERR CLOSED_ORDER the order is no longer in the book
         CANCEL 5
         => ERR UNKNOWN_ORDER this number was never given out",
    );
}

#[test]
fn all_or_nothing_of_a_fok() {
    script(
        WIDE,
        "LIMIT A SELL 5 100
         LIMIT A SELL 5 101
         FOK A BUY 11 101
         => OK 3 FILLED 0 RESTING 0 CANCELLED 11
         FOK A BUY 6 100
         => OK 4 FILLED 0 RESTING 0 CANCELLED 6
         FOK A BUY 10 101
         => OK 5 FILLED 10 RESTING 0 CANCELLED 0 TRADE 1 1 5 100 TRADE 2 2 5 101
         FOK A BUY 1 101
         => OK 6 FILLED 0 RESTING 0 CANCELLED 1",
    );
}

#[test]
fn one_command_trades_with_so_many_and_no_more() {
    script(
        TINY,
        "LIMIT A SELL 1 100
         LIMIT A SELL 1 100
         LIMIT A SELL 1 101
         LIMIT A SELL 1 101
         FOK A BUY 4 101
         => OK 5 FILLED 0 RESTING 0 CANCELLED 4
         FOK A BUY 3 101
         => OK 6 FILLED 3 RESTING 0 CANCELLED 0 TRADE 1 1 1 100 TRADE 2 2 1 100 TRADE 3 3 1 101
         LIMIT A SELL 1 102
         LIMIT A SELL 1 103
         LIMIT A SELL 1 104
         LIMIT A BUY 9 110
         => OK 10 FILLED 3 RESTING 0 CANCELLED 6 TRADE 4 4 1 101 TRADE 5 7 1 102 TRADE 6 8 1 103",
    );
}

#[test]
fn full_books_say_so_and_still_trade() {
    script(
        Limits { orders: 2, symbols: 1, fills: 10 },
        "LIMIT A SELL 1 100
         LIMIT B SELL 1 100
         => ERR SYMBOLS_FULL no room for another symbol
         LIMIT A SELL 1 101
         LIMIT A SELL 1 102
         => ERR BOOK_FULL no room for another order: cancel some
         LIMIT A BUY 1 99
         => ERR BOOK_FULL no room for another order: cancel some
         LIMIT A BUY 3 100
         => OK 3 FILLED 1 RESTING 2 CANCELLED 0 TRADE 1 1 1 100
         MODIFY 3 5 99
         => OK 3 FILLED 0 RESTING 5 CANCELLED 0
         CANCEL 3
         => OK 3 FILLED 0 RESTING 0 CANCELLED 5
         LIMIT A SELL 1 102
         => OK 4 FILLED 0 RESTING 1 CANCELLED 0",
    );
}

#[test]
fn prices_and_quantities_have_bounds() {
    script(
        WIDE,
        "LIMIT A BUY 0 100
         => ERR BAD_QUANTITY a quantity is 1 to 1099511627775
         LIMIT A BUY 1099511627776 100
         => ERR BAD_QUANTITY a quantity is 1 to 1099511627775
         LIMIT A BUY 1 0
         => ERR BAD_PRICE a price is 1 to 281474976710655 ticks
         LIMIT A BUY 1 281474976710656
         => ERR BAD_PRICE a price is 1 to 281474976710655 ticks
         TOP A
         => ERR UNKNOWN_SYMBOL no limit order was entered for it
         LIMIT A BUY 1099511627775 281474976710655
         => OK 1 FILLED 0 RESTING 1099511627775 CANCELLED 0
         MODIFY 1 0 1
         => ERR BAD_QUANTITY a quantity is 1 to 1099511627775
         MARKET A SELL 5
         => OK 2 FILLED 5 RESTING 0 CANCELLED 0 TRADE 1 1 5 281474976710655
         LIMIT A SELL 1099511627775 1
         TOP A
         => TOP A BID 0 0 ASK 1 5",
    );
}
