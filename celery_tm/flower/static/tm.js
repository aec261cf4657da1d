/* What the pages gain where scripts run; all of them work without. No other site is asked, nothing is evaluated.
   Live updates: the page fetches itself and takes over what differs, element by element, so that focus, open details, typed
   text and ticks stay where they are. */
(function () {
  "use strict";
  var EVERY = 3000;
  var LONGEST = 60000;
  var wait = EVERY;
  var timer = null;
  var leaving = false;

  // Instants on the visitor's own clock, where that differs from what is written already.
  function offset(zone, date) {
    return new Intl.DateTimeFormat("en-GB", { timeZone: zone, dateStyle: "short", timeStyle: "short" }).format(date);
  }
  function showLocal(root) {
    root.querySelectorAll("time[data-tm-time]").forEach(function (time) {
      var date = new Date(time.dateTime);
      if (isNaN(date)) { return; }
      time.title = date.toLocaleString(undefined, { dateStyle: "full", timeStyle: "long" });
      var clocks = time.parentNode.querySelector(".tm-clocks");
      var zone = clocks ? clocks.dataset.zone : "UTC";
      var here = Intl.DateTimeFormat().resolvedOptions().timeZone || "UTC";
      var mine = offset(here, date);
      try { if (mine === offset("UTC", date) || mine === offset(zone, date)) { return; } } catch (error) { return; }
      if (!clocks || clocks.querySelector(".tm-mine")) { return; }
      var span = document.createElement("span");
      span.className = "tm-mine";
      span.textContent = date.toLocaleTimeString(undefined, { hour: "2-digit", minute: "2-digit", hourCycle: "h23" }) + " yours";
      span.title = "on your clock, " + here;
      clocks.append(" ", span);
    });
  }

  // Takes over what differs. What people have in hand (an open detail, a typed text, a tick) is theirs.
  function keyOf(node) {
    return node.nodeType === 1 ? node.id || node.getAttribute("data-key") : null;
  }
  function fits(one, other) {
    return one.nodeType === other.nodeType && one.nodeName === other.nodeName && keyOf(one) === keyOf(other);
  }
  function takeAttributes(there, fresh) {
    Array.from(fresh.attributes).forEach(function (a) {
      if (a.name === "open" || (a.name === "value" && there.matches("input:not([type=hidden])"))) { return; }
      if (there.getAttribute(a.name) !== a.value) { there.setAttribute(a.name, a.value); }
    });
    Array.from(there.attributes).forEach(function (a) {
      if (a.name !== "open" && a.name !== "hidden" && !fresh.hasAttribute(a.name)) { there.removeAttribute(a.name); }
    });
  }
  function takeOver(there, fresh) {
    if (there.nodeType !== 1) {
      if (there.nodeValue !== fresh.nodeValue) { there.nodeValue = fresh.nodeValue; }
      return;
    }
    if (there.isEqualNode(fresh)) { return; }
    takeAttributes(there, fresh);
    var keyed = {};
    Array.from(there.children).forEach(function (child) { if (keyOf(child)) { keyed[keyOf(child)] = child; } });
    var at = there.firstChild;
    Array.from(fresh.childNodes).forEach(function (wanted) {
      var found = keyOf(wanted) ? keyed[keyOf(wanted)] : at && fits(at, wanted) ? at : null;
      if (found) {
        if (found !== at) { there.insertBefore(found, at); } else { at = at.nextSibling; }
        takeOver(found, wanted);
      } else {
        var added = document.importNode(wanted, true);
        if (added.nodeType === 1 && keyOf(added)) { added.classList.add("tm-fresh"); }
        there.insertBefore(added, at);
      }
    });
    while (at) {
      var gone = at;
      at = at.nextSibling;
      if (!gone.contains(document.activeElement)) { there.removeChild(gone); }  // somebody is typing there
    }
  }

  function say(text, isLive) {
    var place = document.getElementById("tm-live");
    if (!place) { return; }
    place.hidden = false;
    place.querySelector(".status-dot").className = "status-dot status-dot-" + (isLive ? "live" : "error");
    var words = place.querySelector("[data-tm-live-text]");
    if (words.textContent !== text) { words.textContent = text; }
  }
  function plan() {
    window.clearTimeout(timer);
    if (!leaving && !document.hidden && document.querySelector("[data-live]")) { timer = window.setTimeout(update, wait); }
  }
  function update() {
    fetch(window.location.href, { credentials: "same-origin", cache: "no-store", headers: { Accept: "text/html" } })
      .then(function (answer) {
        if (!answer.ok) { throw new Error(String(answer.status)); }
        return answer.text();
      })
      .then(function (text) {
        if (leaving) { return; }
        var fresh = new DOMParser().parseFromString(text, "text/html");
        showLocal(fresh);
        document.querySelectorAll("[data-live]").forEach(function (there) {
          var wanted = fresh.getElementById(there.id);
          if (wanted) { takeOver(there, wanted); }
        });
        showTickAll();
        showSelected();
        wait = EVERY;
        say("live", true);
      })
      .catch(function () {
        wait = Math.min(wait * 2, LONGEST);
        say("not updated, trying again", false);
      })
      .then(plan);
  }

  // Tick all on the page; shown only where this script runs.
  function showTickAll() {
    document.querySelectorAll("[data-tm-all]").forEach(function (all) { all.hidden = false; });
  }
  // How many are selected, on the buttons that act on them; with none they can do nothing, and the server refuses it too.
  function showSelected() {
    document.querySelectorAll("[data-tm-selected]").forEach(function (button) {
      var count = button.form.querySelectorAll("input[name=ids]:checked").length;
      button.disabled = !count;
      button.textContent = button.getAttribute("data-tm-selected") + (count ? " " + count : "") + " selected…";
    });
  }
  document.addEventListener("change", function (event) {
    var all = event.target;
    if (!all.matches) { return; }
    if (all.matches("[data-tm-all]")) {
      all.form.querySelectorAll("input[name=" + all.getAttribute("data-tm-all") + "]").forEach(function (one) {
        one.checked = all.checked;
      });
    }
    showSelected();
  });

  // One open menu at a time; Escape and a click beside it close it.
  function closeOthers(kept) {
    document.querySelectorAll(".tm-act[open]").forEach(function (one) { if (one !== kept) { one.open = false; } });
  }
  document.addEventListener("click", function (event) { closeOthers(event.target.closest(".tm-act")); });
  document.addEventListener("toggle", function (event) {
    if (!event.target.matches(".tm-act") || !event.target.open) { return; }
    closeOthers(event.target);
    var first = event.target.querySelector("input:not([type=hidden])");
    if (first) { first.focus(); }
  }, true);
  document.addEventListener("keydown", function (event) {
    var open = document.querySelector(".tm-act[open]");
    if (event.key !== "Escape" || !open) { return; }
    open.open = false;
    open.querySelector("summary").focus();
  });

  // The visitor's own time zone can be chosen for the calendar.
  document.querySelectorAll("select[data-tm-zone]").forEach(function (select) {
    var here = Intl.DateTimeFormat().resolvedOptions().timeZone;
    if (here && !Array.from(select.options).some(function (one) { return one.value === here; })) {
      select.add(new Option(here + " (yours)", here));
    }
  });

  document.addEventListener("submit", function () { leaving = true; });
  window.addEventListener("pageshow", function () { leaving = false; showSelected(); plan(); });
  document.addEventListener("visibilitychange", function () { wait = 0; plan(); wait = EVERY; });

  showLocal(document);
  showTickAll();
  showSelected();
  var preview = document.getElementById("tm-preview");
  if (preview) { preview.focus(); }
  plan();
})();
